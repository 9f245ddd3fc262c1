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

#[test]
fn what_simple_clients_write_otherwise_is_understood() {
    let gate = Gate::new("[servers.fix]\ncommand = FIXTURE\nargs = [\"scripted\", \"{}\"]\n");
    let post = |path: &str, session: &str, headers: &[(&str, &str)], text: &str| {
        gate.ask(&format!("POST {path}"), &[&[("Mcp-Session-Id", session)], headers].concat(), text)
    };
    // Without a revision, behind a byte order mark, and at an address with a slash.
    let begin = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
    for path in ["/mcp", "/mcp/", "/mcp/fix/"] {
        let begun = gate.ask(&format!("POST {path}"), &[], &format!("\u{feff}{begin}"));
        assert_eq!(begun.json()["result"]["protocolVersion"], "2025-11-25", "{path} {begun:?}");
    }
    let session = gate.session("/mcp", "2025-11-25");
    for version in ["", "2026-07-28", "2025-06-18"] {
        let reply = post("/mcp", &session, &[("MCP-Protocol-Version", version)], LIST);
        assert!(reply.status == 200 && reply.body.contains("fix__echo"), "{version:?} {reply:?}");
    }
    // Arguments that are none, and the object as a text; numbers stay as they are.
    for (arguments, got) in [
        ("null", "null"),
        ("\"\"", "null"),
        ("[]", "null"),
        (r#""{\"n\":12345678901234567890123}""#, r#"{"n":12345678901234567890123}"#),
    ] {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{{"name":"fix__echo","arguments":{arguments}}}}}"#
        );
        let reply = post("/mcp", &session, &[], &call);
        assert_eq!(reply.json()["result"]["content"][0]["text"], got, "{arguments} {reply:?}");
    }
    // A request without an id has its reason.
    for id in ["", r#""id":null,"#] {
        for method in ["initialize", "tools/list"] {
            let reply =
                post("/mcp", &session, &[], &format!(r#"{{"jsonrpc":"2.0",{id}"method":"{method}"}}"#));
            let said = format!("`{method}` is a request: it must have an `id`");
            assert!(reply.status == 400 && reply.body.contains(&said), "{reply:?}");
        }
    }
}

#[test]
fn a_call_is_cancelled_by_its_number_in_any_form() {
    let gate = Gate::new(FIXTURE);
    for id in ["\"7\"", "7.0"] {
        let session = gate.session("/mcp", "2025-11-25");
        let headers = [("Mcp-Session-Id", &*session)];
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| {
                let slow = call(7, "fix__progress", &json!({"ms": 60_000, "every": 100}));
                gate.ask("POST /mcp", &headers, &slow.to_string())
            });
            let cancel = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
            );
            // Until it has begun there is nothing to cancel.
            while !calling.is_finished() {
                gate.ask("POST /mcp", &headers, &cancel);
                std::thread::yield_now();
            }
            let reply = calling.join().unwrap();
            assert!(!reply.body.contains("\"result\""), "{reply:?}");
        });
    }
}

#[test]
fn numbers_in_errors_and_unknown_blocks_are_exact() {
    let script = r#"{"tools/list":{"result":{"tools":[{"name":"echo"},{"name":"block"}]}},
        "tools/call echo":{"error":{"code":-5,"message":"no","data":{"n":[12345678901234567890123]}}},
        "tools/call block":{"result":{"content":[{"type":"json","n":12345678901234567890123}]}}}"#;
    let gate = Gate::new(&format!("[servers.fix]\ncommand = FIXTURE\nargs = [\"scripted\", {script:?}]\n"));
    for (path, prefix) in [("/mcp", "fix__"), ("/mcp/fix", "")] {
        let session = gate.session(path, "2025-11-25");
        for (tool, wanted) in
            [("echo", r#""data":{"n":[12345678901234567890123]}"#), ("block", "12345678901234567890123")]
        {
            let call = call(2, &format!("{prefix}{tool}"), &json!({})).to_string();
            let reply = gate.ask(&format!("POST {path}"), &[("Mcp-Session-Id", &session)], &call);
            assert!(reply.body.contains(wanted), "{path} {reply:?}");
        }
    }
}
