//! Data that the page of the gateway gets to show: `/live`.

use std::collections::BTreeSet;

use toolcrib_guard::HAS_GUARDS;

use super::*;
use crate::support::scrape::{check_with_promtool, get, value};

/// Writes to stderr before it serves, and does not start while a file `gone` is there.
pub(super) const TALKS: &str = r#"[servers.talks]
command = "/bin/sh"
args = ["-c", "[ -e gone ] && { echo 'the database is gone' >&2; exit 1; }; echo 'hello from stderr' >&2; exec FIXTURE"]
restart = { backoff = "300ms..1s", max = 1000 }
"#;
const RICH: &str = "[servers.rich]\ncommand = FIXTURE\nargs = [\"rich\"]\n";

/// The configuration [`TALKS`], with the path of the fixture.
pub(super) fn talks() -> String {
    TALKS.replace("FIXTURE", crate::support::FIXTURE)
}

/// An answer of `/live`, to the owner of a token if there is one.
pub(super) fn live(gate: &Gate, token: Option<&str>, query: &str) -> Value {
    let token = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> =
        token.as_deref().map(|token| ("Authorization", token)).into_iter().collect();
    let reply = gate.ask(&format!("GET /live{query}"), &headers, "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Begins a session as a client of this name.
pub(super) fn session_of(gate: &Gate, name: &str, token: Option<&str>) -> String {
    let mut hello = initialize("2025-11-25");
    hello["params"]["clientInfo"] = json!({"name": name, "version": "1.5"});
    let token = token.map(|token| format!("Bearer {token}"));
    let mut headers = JSON.to_vec();
    headers.extend(token.as_deref().map(|token| ("Authorization", token)));
    let reply = gate.ask("POST /mcp", &headers, &hello.to_string());
    reply.header("mcp-session-id").unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

/// The rows of a list whose member is this.
fn rows<'v>(list: &'v Value, member: &str, wanted: &str) -> Vec<&'v Value> {
    list.as_array().unwrap().iter().filter(|row| row[member] == wanted).collect()
}

/// The names in a list.
fn names<'v>(list: &'v Value, member: &str) -> BTreeSet<&'v str> {
    list.as_array().unwrap().iter().map(|row| row[member].as_str().unwrap()).collect()
}

#[test]
fn the_page_is_guarded_as_the_endpoints_are() {
    let gate = Gate::new(FIXTURE);
    let page = gate.ask("GET /", &[], "");
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'",
        "script-src 'sha256-",
        "style-src 'sha256-",
        "connect-src 'self'",
        "frame-ancestors 'none'",
    ] {
        assert!(policy.contains(part) && !policy.contains("unsafe"), "{part}: {policy}");
    }
    for (name, wanted) in [
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(page.header(name), Some(wanted));
    }
    assert!(
        !page.body.contains("fix") || !page.body.contains("http"),
        "nothing of the servers, nothing from elsewhere"
    );
    for path in ["/", "/live"] {
        let ask = |method: &str, headers: &[(&str, &str)]| {
            gate.ask(&format!("{method} {path}"), headers, "").status
        };
        assert_eq!((ask("POST", &[]), ask("GET", &[("Host", "evil.example")])), (405, 421), "{path}");
    }
    let from = |origin| gate.ask("GET /live", &[("Origin", origin)], "").status;
    assert_eq!((from("http://evil.example"), from("null"), from("http://localhost:5173")), (403, 403, 200));
    assert_eq!(live(&gate, None, "")["servers"][0]["name"], "fix");
}

#[test]
fn it_tells_of_servers_clients_and_calls() {
    let gate = Gate::new(&format!("{}{RICH}", talks()));
    let session = session_of(&gate, "planner", None);
    let echo = gate.legacy(&session, &call(1, "talks__echo", &json!({"text": "planted-argument"})));
    assert_eq!(echo.text(), "planted-argument");
    gate.modern(2, "tools/call", json!({"name": "talks__pid", "arguments": {}}));
    // Arguments that do not fit, and a refusal of the server with words of its own.
    gate.legacy(&session, &call(3, "talks__echo", &json!({"planted-name": 1})));
    let read =
        json!({"jsonrpc": "2.0", "id": 4, "method": "resources/read", "params": {"uri": "other://planted"}});
    let rich = gate.ask("POST /mcp/rich", &JSON, &initialize("2025-11-25").to_string());
    let rich = rich.header("mcp-session-id").unwrap();
    for message in [
        read,
        json!({"jsonrpc": "2.0", "id": 5, "method": "logging/setLevel", "params": {"level": "debug"}}),
        call(6, "log", &json!({"text": "a message of its log"})),
    ] {
        gate.ask("POST /mcp/rich", &[&JSON[..], &[("Mcp-Session-Id", rich)]].concat(), &message.to_string());
    }
    let mut sleeping = gate.connect();
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    sleeping.send("POST /mcp", &headers, &call(7, "talks__sleep", &json!({"ms": 60_000})).to_string());
    wait_for("the call", || !live(&gate, None, "")["calls"].as_array().unwrap().is_empty());

    let state = live(&gate, None, "");
    let talks = rows(&state["servers"], "name", "talks")[0];
    for (member, wanted) in [
        ("state", json!("busy")),
        ("transport", json!("stdio")),
        ("restarts", json!(0)),
        ("in_flight", json!(1)),
    ] {
        assert_eq!(talks[member], wanted, "{member}: {talks}");
    }
    // Echo, pid and sleep: what does not fit the schema does not get there.
    assert_eq!((&talks["calls"], &talks["software"]), (&json!(3), &json!("fixture 1")), "{talks}");
    assert!(talks["start"]["first_byte"].as_f64().unwrap() > 0.0 && talks["pid"].is_u64(), "{talks}");
    assert_eq!(talks["memory"].as_u64().is_some_and(|bytes| bytes > 1 << 16), HAS_GUARDS, "{talks}");

    let under_way = &state["calls"][0];
    assert_eq!((&under_way["asked"], &under_way["server"]), (&json!("sleep"), &json!("talks")));
    assert_eq!(under_way["client"][1], "planner 1.5");
    let known = |name: &str| {
        let clients = state["clients"].as_array().unwrap();
        clients
            .iter()
            .find(|client| client["names"][0] == name)
            .unwrap_or_else(|| panic!("{name}: {clients:?}"))
    };
    let planner = known("planner 1.5");
    for (member, wanted) in [
        ("version", json!("2025-11-25")),
        ("path", json!("/mcp")),
        ("under_way", json!(1)),
        ("idle_ms", json!(null)),
    ] {
        assert_eq!(planner[member], wanted, "{planner}");
    }
    let (nameless, rich) = (known(""), known("t 1"));
    assert_eq!((&nameless["era"], &nameless["version"]), (&json!("new"), &json!(MODERN)), "{nameless}");
    assert!(nameless["idle_ms"].as_f64().is_some() && rich["path"] == "/mcp/rich", "{rich}");

    let ended: Vec<(&str, &str)> = state["ended"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["asked"].as_str().unwrap(), one["outcome"].as_str().unwrap()))
        .collect();
    let wanted = [
        ("echo", "ok"),
        ("pid", "ok"),
        ("echo", "arguments_invalid"),
        ("resources/read", "refused"),
        ("log", "ok"),
    ];
    assert_eq!(ended, wanted);
    let line = |kind: &str, text: &str| {
        let lines = rows(&state["lines"], "kind", kind);
        assert!(lines.iter().any(|line| line["text"].as_str().unwrap().contains(text)), "{kind}: {lines:?}");
    };
    line("stderr", "hello from stderr");
    line("event", "ready after");
    line("log", "error a message of its log");
    assert!(!state.to_string().contains("planted"), "neither arguments nor results: {state}");

    let places = format!(
        "?run={}&lines={}&ended={}",
        state["run"].as_str().unwrap(),
        state["last_line"],
        state["last_ended"]
    );
    let next = live(&gate, None, &places);
    assert_eq!(
        (&next["lines"], &next["ended"]),
        (&json!([]), &json!([])),
        "what was shown is not sent again"
    );
    let other = live(&gate, None, &places.replacen("run=", "run=0", 1));
    assert_eq!(other["ended"], state["ended"], "the places of another gateway");
}

#[test]
fn instances_of_clients_are_counted_with_their_server() {
    let gate = Gate::new("[servers.own]\ncommand = FIXTURE\nscope = \"client\"\n");
    for name in ["one", "two"] {
        let session = session_of(&gate, name, None);
        gate.legacy(&session, &call(1, "own__pid", &json!({}))).text();
    }
    let state = live(&gate, None, "");
    let own = &state["servers"][0];
    assert_eq!((&own["calls"], &own["lent"]), (&json!(2), &json!(2)), "{own}");
}

#[test]
fn a_token_sees_what_its_tools_concern() {
    let tokens = r#"
[gateway]
tokens = [
  { name = "all", token = "all-token-0123456789" },
  { name = "some", token = "some-token-0123456789", tools = ["talks.echo"] },
  { name = "other", token = "other-token-0123456789", tools = ["fix.*"] },
]
"#;
    let gate = Gate::new(&format!("{FIXTURE}{}{tokens}", talks()));
    let [all, some, other] = ["all", "some", "other"].map(|name| format!("{name}-token-0123456789"));
    assert_eq!((gate.ask("GET /", &[], "").status, gate.ask("GET /live", &[], "").status), (200, 401));
    assert_eq!(gate.ask("GET /live", &[("Authorization", "Bearer all-token-012345678")], "").status, 401);
    let ask = |session: &str, token: &str, message: &Value| {
        let token = format!("Bearer {token}");
        let headers = [&JSON[..], &[("Mcp-Session-Id", session), ("Authorization", &token)]].concat();
        gate.ask("POST /mcp", &headers, &message.to_string())
    };
    for (name, token) in [("boss", &all), ("helper", &some)] {
        let session = session_of(&gate, name, Some(token));
        ask(&session, token, &call(1, "talks__echo", &json!({"text": name})));
        if name == "boss" {
            ask(&session, token, &call(2, "talks__pid", &json!({})));
            ask(&session, token, &call(3, "fix__pid", &json!({})));
        }
    }
    let seen = live(&gate, Some(&all), "");
    assert_eq!(names(&seen["servers"], "name"), BTreeSet::from(["fix", "talks"]));
    assert_eq!((seen["ended"].as_array().unwrap().len(), &seen["limited"]), (4, &json!(false)));
    assert_eq!(names(&seen["clients"], "token"), BTreeSet::from(["all", "some"]));

    // One tool of a server: not what tells of its other tools, nor who else is there.
    let seen = live(&gate, Some(&some), "");
    assert_eq!(names(&seen["servers"], "name"), BTreeSet::from(["talks"]));
    let talks = &seen["servers"][0];
    assert_eq!(
        (&talks["state"], talks.get("calls"), talks.get("pid")),
        (&json!("ready"), None, None),
        "{talks}"
    );
    assert_eq!((&seen["lines"], &seen["limited"]), (&json!([]), &json!(true)));
    let clients: Vec<&Value> =
        seen["ended"].as_array().unwrap().iter().map(|one| &one["client"][1]).collect();
    assert_eq!(
        (names(&seen["ended"], "asked"), clients),
        (BTreeSet::from(["echo"]), vec![&Value::Null, &json!("helper 1.5")])
    );
    assert_eq!(seen["clients"].as_array().unwrap().len(), 1);
    assert!(!seen.to_string().contains("boss"), "{seen}");

    // All tools of a server, and no session.
    let seen = live(&gate, Some(&other), "");
    assert_eq!(names(&seen["servers"], "name"), BTreeSet::from(["fix"]));
    assert_eq!((&seen["servers"][0]["calls"], &seen["clients"]), (&json!(1), &json!([])));
    assert_eq!(seen["lines"], json!([]), "the server may have written them about calls of others");
    for (token, fixes) in [(&some, 0), (&other, 1)] {
        let seen = live(&gate, Some(token), "");
        assert_eq!(rows(&seen["ended"], "server", "fix").len(), fixes, "{seen}");
    }
}

#[test]
fn waits_of_a_server_that_is_down_are_counted() {
    let gate = Gate::new(&talks());
    let session = session_of(&gate, "caller", None);
    let metrics = || get(&gate.address, "/metrics");
    assert_eq!(value::<u64>(&metrics(), "toolcrib_gateway_sessions"), 1);
    std::fs::write(gate.crib.folder().join("gone"), "").unwrap();
    gate.legacy(&session, &call(1, "talks__die", &json!({})));
    let count = "toolcrib_reconnect_wait_seconds_count{server=\"talks\"}";
    wait_for("two waits", || metrics().contains(count) && value::<u64>(&metrics(), count) >= 2);
    // 300 ms and 600 ms.
    assert!(value::<f64>(&metrics(), "toolcrib_reconnect_wait_seconds_sum{server=\"talks\"}") > 0.5);
    let down = live(&gate, None, "");
    let talks = &down["servers"][0];
    assert!(talks["error"]["text"].as_str().unwrap().contains("talks"), "{talks}");
    assert!(talks["error"]["stderr"].to_string().contains("the database is gone"), "{talks}");
}

#[toolcrib_testing::requires(promtool)]
#[test]
fn promtool_accepts_the_metrics_of_a_gateway() {
    let gate = Gate::new(&talks());
    let session = session_of(&gate, "caller", None);
    std::fs::write(gate.crib.folder().join("gone"), "").unwrap();
    gate.legacy(&session, &call(1, "talks__die", &json!({})));
    let metrics = || get(&gate.address, "/metrics");
    wait_for("a wait", || metrics().contains("toolcrib_reconnect_wait_seconds_count"));
    check_with_promtool(&metrics());
}
