//! Headers of clients: the form of an answer is one that they take, and a refusal says what is wrong.

use super::{live::live, *};

const LIST: &str = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;

/// A list in a session of the old era, with these headers.
fn listed(gate: &Gate, session: &str, headers: &[(&str, &str)]) -> Reply {
    gate.ask("POST /mcp", &[&[("Mcp-Session-Id", session)], headers].concat(), LIST)
}

#[test]
fn an_answer_has_the_form_that_its_client_takes() {
    let gate = Gate::new(FIXTURE);
    let json = ("Content-Type", "application/json");
    for (accept, form) in [
        (None, "application/json"),
        (Some("*/*"), "application/json"),
        (Some("application/json"), "application/json"),
        (Some("Application/JSON;q=0.9"), "application/json"),
        (Some("text/event-stream"), "text/event-stream"),
        (Some("application/json;q=0, */*"), "text/event-stream"),
    ] {
        let headers: Vec<_> = [json].into_iter().chain(accept.map(|accept| ("Accept", accept))).collect();
        let begun = gate.ask("POST /mcp", &headers, &initialize("2025-11-25").to_string());
        assert_eq!((begun.status, begun.header("content-type")), (200, Some(form)), "{accept:?} {begun:?}");
        assert!(begun.body.contains("serverInfo"), "{begun:?}");
        let session = begun.header("mcp-session-id").unwrap();
        let reply = listed(&gate, session, &headers);
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(form)), "{accept:?} {reply:?}");
        assert!(reply.body.contains("fix__echo"), "{reply:?}");
        // A call that reports progress, and takes long enough to become a stream.
        let slow = call(3, "fix__progress", &json!({"ms": 700, "every": 100}));
        let headers = [&headers[..], &[("Mcp-Session-Id", session)]].concat();
        let reply = gate.ask("POST /mcp", &headers, &slow.to_string());
        match accept {
            Some("application/json" | "Application/JSON;q=0.9") => {
                assert_eq!((reply.status, &reply.json()["id"]), (200, &json!(3)), "{reply:?}");
            }
            _ => assert!(
                reply.body.contains("data: ") && reply.body.contains("\"id\":3"),
                "{accept:?} {reply:?}"
            ),
        }
        let (modern, message) = modern(4, "tools/list", json!({}));
        let modern: Vec<(&str, &str)> = modern
            .iter()
            .filter(|(name, _)| *name != "Accept")
            .map(|(name, value)| (*name, &**value))
            .collect();
        let modern =
            [&modern[..], &accept.map(|accept| ("Accept", accept)).into_iter().collect::<Vec<_>>()].concat();
        let reply = gate.ask("POST /mcp", &modern, &message.to_string());
        assert_eq!((reply.status, reply.header("content-type")), (200, Some(form)), "{accept:?} {reply:?}");
    }
    let session = gate.session("/mcp", "2025-11-25");
    for (headers, status, said) in [
        (vec![], 200, "fix__echo"),
        (vec![("Content-Type", "APPLICATION/json; charset=UTF-8")], 200, "fix__echo"),
        (vec![("Content-Type", "text/plain")], 415, "`Content-Type` must be application/json"),
        (
            vec![json, ("Accept", "text/html")],
            406,
            "`Accept` must list application/json, text/event-stream or both",
        ),
        (vec![("Origin", "http://localhost:1")], 415, "Content-Type"),
    ] {
        let reply = listed(&gate, &session, &headers);
        assert_eq!((reply.status, reply.body.contains(said)), (status, true), "{headers:?} {reply:?}");
    }
    let stream = gate.ask("GET /mcp", &[("Mcp-Session-Id", &*session), ("Accept", "application/json")], "");
    assert!(stream.status == 406 && stream.body.contains("text/event-stream"), "{stream:?}");
    let other = gate.ask("POST /mcp/nosuch", &[json], &initialize("2025-11-25").to_string());
    assert!(other.status == 404 && other.body.contains("`nosuch`"), "{other:?}");
    let sse = gate.ask("GET /sse", &[("Accept", "text/event-stream")], "");
    assert!(sse.status == 404 && sse.body.contains("sse = true"), "{sse:?}");
}

#[test]
fn a_server_that_is_down_says_why_in_the_body() {
    let gate = Gate::new(&format!("{FIXTURE}[servers.dead]\ncommand = FIXTURE\nargs = [\"die-now\"]\n"));
    let reply = gate.ask("POST /mcp/dead", &JSON, &initialize("2025-11-25").to_string());
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &reply.json()["id"], reply.header("mcp-session-id")), (200, &json!(0), None));
    assert!(error["message"].as_str().unwrap().contains("dead"), "{error}");
    assert!(error.to_string().contains("missing API key FOO"), "{error}");
}

#[test]
fn the_page_shows_what_clients_could_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.json");
    let tools = json!({"tools": [{"name": "t", "inputSchema": {"type": "string"}, "icons": 5}]});
    let result = json!({"content": [{"type": "video"}]});
    std::fs::write(&file, json!({"tools/list": tools, "tools/call t": result}).to_string()).unwrap();
    let gate = Gate::new(&format!("{FIXTURE}args = [\"answers={}\"]\n", file.display()));
    let faults = || live(&gate, None, "")["servers"][0]["faults"].clone();
    assert_eq!(faults(), json!([]), "nobody has asked");
    let session = gate.session("/mcp", "2025-11-25");
    for _ in 0..2 {
        listed(&gate, &session, &JSON);
        gate.legacy(&session, &call(3, "fix__t", &json!({})));
    }
    assert_eq!(
        faults(),
        json!([
            "tool `t`: `inputSchema/type` was \"string\": \"object\" is shown",
            "tool `t`: `icons` must be a list, not 5: left out",
            "result of `t`: `content/0` is of no kind that the protocol has: shown as text",
        ])
    );
}

#[test]
fn a_result_is_no_longer_than_clients_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("answers.json");
    let text = "\"words\"\n".repeat(200_000);
    let schema =
        json!({"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]});
    let tool = json!({"name": "t", "inputSchema": {"type": "object"}, "outputSchema": schema});
    let result = json!({"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}});
    std::fs::write(&file, json!({"tools/list": {"tools": [tool]}, "tools/call t": result}).to_string())
        .unwrap();
    let settings = "[defaults]\noutput_folder = \"out\"\n";
    let gate = Gate::new(&format!("{FIXTURE}args = [\"answers={}\"]\n{settings}", file.display()));
    let session = gate.session("/mcp", "2025-11-25");
    for accept in ["text/event-stream", "application/json"] {
        let headers =
            [("Content-Type", "application/json"), ("Accept", accept), ("Mcp-Session-Id", &*session)];
        let reply = gate.ask("POST /mcp", &headers, &call(3, "fix__t", &json!({})).to_string());
        assert!(reply.body.len() < 1_000_000, "{accept}: {}", reply.body.len());
        let mut events = reply.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let event = events.rfind(|data| data.starts_with('{')).unwrap_or(&reply.body);
        let result = serde_json::from_str::<Value>(event).unwrap()["result"].take();
        for shown in [&result["content"][0]["text"], &result["structuredContent"]["result"]] {
            let shown = shown.as_str().unwrap();
            assert!(shown.starts_with("\"words\"\n") && shown.len() > 200_000, "{}", shown.len());
            assert!(shown.ends_with(']') && shown.contains("all of it is in "), "{accept}");
        }
        assert!(result["content"][0]["text"].as_str().unwrap().contains(" of 1600000 bytes are shown"));
        assert_ne!(result["isError"], true);
    }
}
