//! Budgets of owners: more than a budget is refused, in words, and others go on.

use super::*;

const TOKENS: &str = r#"
tokens = [
  { name = "greedy", token = "greedy-token-0123456789" },
  { name = "modest", token = "modest-token-0123456789" },
]
"#;
const GREEDY: &str = "greedy-token-0123456789";
const MODEST: &str = "modest-token-0123456789";

fn gate(servers: &str, limits: &str) -> Gate {
    Gate::new(&format!("{servers}[gateway]\n{limits}{TOKENS}"))
}

fn begin(gate: &Gate, token: &str, path: &str) -> String {
    let made = gate.with_token(token, &format!("POST {path}"), None, &initialize("2025-11-25"));
    made.header("mcp-session-id").unwrap_or_else(|| panic!("{made:?}")).to_owned()
}

/// Lists of many small values take many times their text.
fn zeros(count: usize) -> Value {
    json!(vec![0; count])
}

#[test]
fn what_a_client_says_of_itself_is_short() {
    let gate = Gate::new(FIXTURE);
    let mut hello = initialize("2025-11-25");
    hello["params"]["capabilities"] = json!({"experimental": {"x": zeros(40_000)}});
    let refused = gate.ask("POST /mcp", &JSON, &hello.to_string());
    assert!(refused.header("mcp-session-id").is_none(), "{refused:?}");
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("65536"), "{refused:?}");
    let (headers, mut message) = modern(1, "tools/call", json!({"name": "fix__pid", "arguments": {}}));
    message["params"]["_meta"][CAPABILITIES] = json!({"experimental": {"x": zeros(40_000)}});
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let refused = gate.ask("POST /mcp", &headers, &message.to_string());
    assert!(refused.body.contains("65536"), "{refused:?}");
}

#[test]
fn messages_that_are_half_received_count_for_their_owner() {
    let gate = gate(FIXTURE, "max_held = \"1MiB\"\n");
    let session = begin(&gate, MODEST, "/mcp");
    let half = |token: &str| {
        let mut connection = gate.connect();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n\
             Content-Length: 400000\r\n\r\n{{\"x\":\"{}",
            gate.address,
            "x".repeat(300_000)
        );
        let _ = connection.stream.get_mut().write_all(head.as_bytes());
        connection
    };
    // Each has room for 512 KiB by now.
    let halves = [half(GREEDY), half(GREEDY)];
    let discover = || gate.with_token(GREEDY, "POST /mcp", None, &initialize("2025-11-25"));
    wait_for("a refusal", || discover().status == 429);
    let refused = discover();
    assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
    assert!(refused.body.contains("token `greedy`") && refused.body.contains("max_held"), "{refused:?}");
    let other =
        gate.with_token(MODEST, "POST /mcp", Some(&session), &call(1, "fix__echo", &json!({"text": "x"})));
    assert_eq!(other.text(), "x");
    drop(halves);
    wait_for("room", || discover().status == 200);
}

#[test]
fn arguments_count_as_values_while_they_are_checked() {
    let gate = gate(FIXTURE, "max_held = \"4MiB\"\n");
    let session = begin(&gate, GREEDY, "/mcp");
    let ask = |id: u64, arguments: &Value| {
        gate.with_token(GREEDY, "POST /mcp", Some(&session), &call(id, "fix__echo", arguments))
    };
    let refused = ask(1, &json!({"text": "x", "more": zeros(100_000)}));
    let why = refused.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert!(why.contains("while they are checked") && why.contains("max_held"), "{refused:?}");
    // As long, and little as values.
    assert_eq!(ask(2, &json!({"text": "x".repeat(200_000)})).text().len(), 200_000);
    assert_eq!(ask(3, &json!({"text": "x"})).text(), "x", "nothing is held any more");
}

#[test]
fn calls_under_way_count_for_their_owner() {
    let gate = gate(FIXTURE, "max_held = \"2MiB\"\n");
    let [session, other] = [GREEDY, MODEST].map(|token| begin(&gate, token, "/mcp/fix"));
    let bearer = format!("Bearer {GREEDY}");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session), ("Authorization", &*bearer)]].concat();
    let sleep = |id: u64| {
        let mut connection = gate.connect();
        let arguments = json!({"ms": 120_000, "pad": "x".repeat(200_000)});
        connection.send("POST /mcp/fix", &headers, &call(id, "sleep", &arguments).to_string());
        connection
    };
    let asked = |token: &str, session: &str| {
        gate.with_token(
            token,
            "POST /mcp/fix",
            Some(session),
            &call(20, "echo", &json!({"text": "x".repeat(200_000)})),
        )
    };
    // While a call is checked it counts for more: some of them are refused themselves.
    let (mut sleeping, mut ids): (Vec<Connection>, _) = (Vec::new(), 100..);
    wait_for("a refusal", || {
        sleeping.extend(ids.next().map(sleep));
        assert!(sleeping.len() < 40, "8 MB were sent, and 2 MiB may be held");
        asked(GREEDY, &session).status == 429
    });
    let refused = asked(GREEDY, &session);
    assert_eq!(refused.header("retry-after"), Some("1"), "{refused:?}");
    assert!(refused.body.contains("token `greedy`"), "{refused:?}");
    assert_eq!(asked(MODEST, &other).text().len(), 200_000);
    // Clients of this version cancel a call by a message.
    for id in 100..ids.start {
        let cancel =
            json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        gate.with_token(GREEDY, "POST /mcp/fix", Some(&session), &cancel);
    }
    wait_for("room", || asked(GREEDY, &session).status == 200);
    drop(sleeping);
}

#[test]
fn watched_resources_count_and_have_short_names() {
    let rich = "[servers.rich]\ncommand = FIXTURE\nargs = [\"rich\"]\n";
    let gate = gate(rich, "max_held = \"200KiB\"\n");
    let session = begin(&gate, GREEDY, "/mcp/rich");
    let watch = |number: usize, length: usize| {
        let uri = format!("rich://{number:04}{}", "x".repeat(length));
        let message =
            json!({"jsonrpc": "2.0", "id": number, "method": "resources/subscribe", "params": {"uri": uri}});
        gate.with_token(GREEDY, "POST /mcp/rich", Some(&session), &message)
    };
    let refused = watch(1, 9000);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("8192"), "{refused:?}");
    let answers: Vec<Reply> = (2..20).map(|number| watch(number, 8000)).collect();
    let taken = answers.iter().filter(|answer| answer.body.contains("result")).count();
    assert!((1..8).contains(&taken), "{taken}");
    assert!(answers.last().unwrap().body.contains("token `greedy`"), "{:?}", answers.last());
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(gate.with_token(GREEDY, "DELETE /mcp/rich", Some(&session), &message).status, 204);
    let session = begin(&gate, GREEDY, "/mcp/rich");
    let one =
        json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "rich://one"}});
    assert!(gate.with_token(GREEDY, "POST /mcp/rich", Some(&session), &one).body.contains("result"));
}

#[test]
fn servers_of_their_own_are_limited_for_each_owner() {
    let gate = gate(&format!("{FIXTURE}scope = \"client\"\n"), "max_own_servers = 2\n");
    let ask = |token: &str, session: &str| {
        gate.with_token(token, "POST /mcp", Some(session), &call(1, "fix__pid", &json!({}))).answer()
    };
    let sessions: Vec<String> = (0..4).map(|_| begin(&gate, GREEDY, "/mcp")).collect();
    assert!(sessions[..2].iter().all(|session| ask(GREEDY, session).get("result").is_some()));
    let refused = ask(GREEDY, &sessions[2]);
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("max_own_servers"), "{refused}");
    assert!(ask(MODEST, &begin(&gate, MODEST, "/mcp")).get("result").is_some());
    gate.with_token(GREEDY, "DELETE /mcp", Some(&sessions[0]), &json!({}));
    wait_for("room", || ask(GREEDY, &sessions[3]).get("result").is_some());
}

#[test]
#[cfg(target_os = "linux")]
fn own_servers_count_until_they_have_ended() {
    let own = format!("{FIXTURE}scope = \"client\"\nargs = [\"ignore-eof\"]\neof_grace = \"1s\"\n");
    let gate = gate(&own, "max_own_servers = 1\n");
    let mut before: Option<String> = None;
    for _ in 0..3 {
        let session = begin(&gate, GREEDY, "/mcp");
        let pid =
            gate.with_token(GREEDY, "POST /mcp", Some(&session), &call(1, "fix__pid", &json!({}))).text();
        let is_there = |pid: &String| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
        assert!(!before.as_ref().is_some_and(is_there), "the one before is being ended yet");
        assert_eq!(gate.with_token(GREEDY, "DELETE /mcp", Some(&session), &json!({})).status, 204);
        before = Some(pid);
    }
}

#[test]
fn clients_that_read_nothing_leave_room_for_others() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_held = \"2MiB\"\n"));
    // More than there is room for; not so much that the server is at work on it for long.
    let silent: Vec<Connection> = (0..5)
        .map(|_| {
            let session = gate.session("/mcp", "2025-11-25");
            let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
            let mut connection = gate.connect();
            for id in 0..3 {
                let big = call(id, "fix__big", &json!({"bytes": 900_000})).to_string();
                connection.send("POST /mcp", &headers, &big);
            }
            connection
        })
        .collect();
    let session = gate.session("/mcp", "2025-11-25");
    for id in 0..20 {
        assert_eq!(gate.legacy(&session, &call(id, "fix__echo", &json!({"text": "x"}))).text(), "x");
    }
    drop(silent);
}

/// Memory of a process, in KiB.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_reads_nothing_is_told_a_bounded_amount() {
    let gate = gate(&format!("{FIXTURE}scope = \"client\"\n"), "max_held = \"2MiB\"\n");
    let made = gate.with_token(GREEDY, "POST /mcp", None, &initialize("2025-03-26"));
    let session = made.header("mcp-session-id").unwrap().to_owned();
    let ask = |id| gate.with_token(GREEDY, "POST /mcp", Some(&session), &call(id, "fix__pid", &json!({})));
    let server = rustix::process::Pid::from_raw(ask(1).text().parse().unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    let before = resident(gate.child.id());
    let told = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": {"x": "y".repeat(400)}});
    let bearer = format!("Bearer {GREEDY}");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session), ("Authorization", &*bearer)]].concat();
    let batch = json!(vec![told; 100]).to_string();
    let mut connection = gate.connect();
    for _ in 0..1000 {
        assert_eq!(connection.ask("POST /mcp", &headers, &batch).status, 202);
    }
    let more = resident(gate.child.id()).saturating_sub(before);
    assert!(more < 20 << 10, "{more} KiB more");
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    assert_eq!(ask(2).text(), server.to_string());
}

#[test]
fn a_listener_names_no_more_resources_than_it_may_watch() {
    let gate = gate("[servers.rich]\ncommand = FIXTURE\nargs = [\"rich\"]\n", "");
    let listen = |count: usize| {
        let uris: Vec<String> = (0..count).map(|number| format!("rich://{number}")).collect();
        let params = json!({"notifications": {"resourceSubscriptions": uris}});
        let (mut headers, message) = modern(1, "subscriptions/listen", params);
        headers.push(("Authorization", format!("Bearer {GREEDY}")));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let mut connection = gate.connect();
        connection.send("POST /mcp/rich", &headers, &message.to_string());
        connection
    };
    let refused = listen(200_000).reply();
    assert!(refused.body.contains("a client can watch 1000 resources"), "{refused:?}");
    // Listeners to the same share them, until the last one ends.
    let mut first = listen(1000);
    first.head();
    assert!(first.until("acknowledged").contains("rich://999"));
    let mut second = listen(1000);
    second.head();
    assert!(second.until("acknowledged").contains("rich://999"));
    drop(first);
    let state = || {
        let session = begin(&gate, MODEST, "/mcp/rich");
        gate.with_token(MODEST, "POST /mcp/rich", Some(&session), &call(1, "state", &json!({}))).text()
    };
    assert!(state().contains("rich://999"), "{}", state());
    drop(second);
    wait_for("the end of all", || !state().contains("rich://"));
}
