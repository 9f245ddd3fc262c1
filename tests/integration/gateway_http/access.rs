//! Who may ask: hosts, origins, tokens and their tools, sessions of others.

use super::*;

const TOKENS: &str = r#"
[gateway]
token = "${GATE_TOKEN}"
tokens = [
  { name = "ci", token = "ci-token-0123456789", tools = ["fix.e*"] },
  { name = "reader", token = "reader-token-0123456789", read_only = true },
]
"#;

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let gate = Gate::new(FIXTURE);
    let message = initialize("2025-11-25").to_string();
    let with = |lines: &[(&str, &str)]| gate.ask("POST /mcp", &[&JSON[..], lines].concat(), &message);
    for host in ["evil.example", "127.0.0.1.evil.example", "10.0.0.1"] {
        assert_eq!(with(&[("Host", host)]).status, 421, "{host}");
    }
    for origin in ["http://evil.example", "null", "http://localhost.evil.example"] {
        let refused = with(&[("Origin", origin)]);
        assert_eq!((refused.status, refused.error()), (403, -32600), "{origin}");
        assert_eq!(refused.json().get("id"), None);
    }
    let page = with(&[("Origin", "http://localhost:6274"), ("Host", "localhost")]);
    assert_eq!(page.status, 200);
    assert_eq!(page.header("access-control-allow-origin"), Some("http://localhost:6274"));
    let preflight = gate.ask(
        "OPTIONS /mcp",
        &[("Origin", "http://localhost:6274"), ("Access-Control-Request-Headers", "mcp-method")],
        "",
    );
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-headers")),
        (204, Some("mcp-method"))
    );
    // What a page can send without asking first.
    let simple = gate.ask("POST /mcp", &[("Content-Type", "text/plain"), ("Accept", "*/*")], &message);
    assert_eq!(simple.status, 415);
    let configured = Gate::new(&format!("{FIXTURE}[gateway]\norigins = [\"https://app.example\"]\n"));
    let from =
        |origin| configured.ask("POST /mcp", &[&JSON[..], &[("Origin", origin)]].concat(), &message).status;
    assert_eq!((from("https://app.example"), from("http://localhost:6274")), (200, 403));
}

/// A page whose name leads to this machine (DNS rebinding) is of the same origin as the gateway, and sends no `Origin`.
#[test]
fn other_names_are_refused_on_every_address() {
    let url = "[gateway]\npublic_url = \"https://tools.example.com\"\n";
    for (table, public) in [("", false), (url, true)] {
        let gate = Gate::with(&format!("{FIXTURE}{table}"), &["--http", "0.0.0.0:0"]);
        let port = gate.address.rsplit_once(':').unwrap().1;
        let status = |path: &str, host: &str| {
            let host = format!("{host}:{port}");
            Connection::new(&format!("127.0.0.1:{port}")).ask(&format!("GET {path}"), &[("Host", &host)], "")
        };
        for path in ["/live", "/metrics", "/healthz"] {
            for name in ["evil.example", "localhost.evil.example", "10.0.0.1.evil.example"] {
                let refused = status(path, name);
                assert_eq!(refused.status, 421, "{path} {name}");
                assert!(refused.body.contains("`public_url` in [gateway]"), "{refused:?}");
            }
            for known in ["localhost", "127.0.0.1", "10.0.0.1", "[::1]", "[2001:db8::1]"] {
                assert_eq!(status(path, known).status, 200, "{path} {known}");
            }
            assert_eq!(status(path, "Tools.example.com").status == 200, public, "{path}");
        }
    }
}

#[test]
fn each_token_has_its_tools() {
    let gate = Gate::new(&format!("{FIXTURE}{TOKENS}"));
    let list = |token: Option<&str>| {
        let (mut headers, message) = modern(1, "tools/list", json!({}));
        headers.extend(token.map(|token| ("Authorization", format!("Bearer {token}"))));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        gate.ask("POST /mcp", &headers, &message.to_string())
    };
    for wrong in [None, Some("gate-token-012345678"), Some("x")] {
        let refused = list(wrong);
        assert_eq!(refused.status, 401, "{wrong:?}");
        assert!(refused.header("www-authenticate").unwrap().starts_with("Bearer"), "{refused:?}");
    }
    let names = |token| {
        let listed = list(Some(token)).json();
        let tools = listed["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("ci-token-0123456789"), ["fix__echo", "fix__effect", "fix__env"]);
    let (all, reader) = (names("gate-token-0123456789"), names("reader-token-0123456789"));
    assert!(all.contains(&"fix__die".to_owned()) && all.contains(&"fix__pid".to_owned()));
    assert!(reader.contains(&"fix__pid".to_owned()) && !reader.contains(&"fix__die".to_owned()));
    let (mut headers, message) = modern(1, "tools/call", json!({"name": "fix__pid", "arguments": {}}));
    headers.push(("Authorization", "Bearer ci-token-0123456789".to_owned()));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(gate.ask("POST /mcp", &headers, &message.to_string()).error(), -32602, "it is not there");
    for (path, status) in [("/metrics", 401), ("/healthz", 200), ("/readyz", 200), ("/nothing", 401)] {
        assert_eq!(gate.ask(&format!("GET {path}"), &[], "").status, status, "{path}");
    }
}

#[test]
fn sessions_of_others_are_not_there() {
    let gate = Gate::new(&format!("{FIXTURE}{TOKENS}"));
    let as_owner = |token: &str, head: &str, session: Option<&str>, message: &Value| {
        let token = format!("Bearer {token}");
        let mut headers = [&JSON[..], &[("Authorization", &*token)]].concat();
        headers.extend(session.map(|id| ("Mcp-Session-Id", id)));
        gate.ask(head, &headers, &message.to_string())
    };
    let (own, other) = ("gate-token-0123456789", "reader-token-0123456789");
    let made = as_owner(own, "POST /mcp", None, &initialize("2025-11-25"));
    let session = made.header("mcp-session-id").unwrap();
    let echo = call(1, "fix__echo", &json!({"text": "x"}));
    assert_eq!(as_owner(other, "POST /mcp", Some(session), &echo).status, 404);
    assert_eq!(as_owner(other, "GET /mcp", Some(session), &json!(null)).status, 404);
    assert_eq!(as_owner(other, "DELETE /mcp", Some(session), &json!(null)).status, 404);
    assert_eq!(as_owner(own, "POST /mcp", Some(session), &echo).status, 200);
}

#[test]
fn a_client_cancels_only_its_own_requests() {
    let gate = Gate::new(FIXTURE);
    let (own, other) = (gate.session("/mcp", "2025-11-25"), gate.session("/mcp", "2025-11-25"));
    let mut sleeping = gate.connect();
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*own)]].concat();
    sleeping.send("POST /mcp", &headers, &call(5, "fix__sleep", &json!({"ms": 1500})).to_string());
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    wait_for("the call", || gate.legacy(&other, &call(1, "fix__in_flight", &json!({}))).text() == "1");
    assert_eq!(gate.legacy(&other, &cancel).status, 202);
    // Nor does somebody without a session, whose ids are those of all others.
    let (headers, mut message) = modern(5, "notifications/cancelled", json!({"requestId": 5}));
    message.as_object_mut().unwrap().remove("id");
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(gate.ask("POST /mcp", &headers, &message.to_string()).status, 202);
    assert_eq!(sleeping.reply().text(), "awake");
    let mut cancelled = gate.connect();
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*own)]].concat();
    cancelled.send("POST /mcp", &headers, &call(5, "fix__sleep", &json!({"ms": 20000})).to_string());
    wait_for("the call", || gate.legacy(&other, &call(1, "fix__in_flight", &json!({}))).text() == "1");
    assert_eq!(gate.legacy(&own, &cancel).status, 202);
    assert_eq!(cancelled.reply().events(), Vec::<Value>::new(), "the stream ends without an answer");
}
