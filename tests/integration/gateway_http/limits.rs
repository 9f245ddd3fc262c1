//! Limits: sizes, times, rates, many clients, clients that do not read.

use std::time::Instant;

use super::*;

#[test]
fn messages_that_are_too_long_are_refused() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_body = \"10KB\"\n"));
    let long = |bytes: usize| call(1, "fix__echo", &json!({"text": "x".repeat(bytes)})).to_string();
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    assert_eq!(gate.ask("POST /mcp", &headers, &long(9000)).status, 200);
    let refused = gate.ask("POST /mcp", &headers, &long(20_000));
    assert_eq!((refused.status, refused.header("connection")), (413, Some("close")), "{refused:?}");
    // The same without a length that could be looked at first.
    let mut parts = gate.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
        gate.address
    );
    let stream = parts.stream.get_mut();
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..20 {
        let _ = stream.write_all(format!("400\r\n{}\r\n", "x".repeat(1024)).as_bytes());
    }
    assert_eq!(parts.head().status, 413);
    let head = gate.ask("GET /healthz", &[("X-Long", &*"x".repeat(100_000))], "");
    assert!(head.status == 431 || head.status == 400, "{head:?}");
}

#[test]
fn who_sends_slowly_is_not_waited_for() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nread_timeout = \"300ms\"\n"));
    let mut body = gate.connect();
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        gate.address
    );
    body.stream.get_mut().write_all(head.as_bytes()).unwrap();
    let refused = body.reply();
    assert_eq!((refused.status, refused.header("connection")), (408, Some("close")));
    let mut head = gate.connect();
    head.stream.get_mut().write_all(b"POST /mcp HTTP/1.1\r\nHost: ").unwrap();
    let mut rest = String::new();
    let began = Instant::now();
    head.stream.read_to_string(&mut rest).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20) && !rest.contains("200"), "{rest}");
    assert_eq!(gate.ask("GET /healthz", &[], "").body, "ok\n");
}

#[test]
#[cfg(target_os = "linux")]
fn who_does_not_read_is_disconnected() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nread_timeout = \"500ms\"\n"));
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let mut silent = gate.connect();
    assert_eq!(silent.ask("GET /healthz", &[], "").status, 200);
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", gate.child.id())).unwrap().count();
    let before = descriptors();
    for id in 0..20 {
        silent.send("POST /mcp", &headers, &call(id, "fix__big", &json!({"bytes": 900_000})).to_string());
    }
    wait_for("the end of the connection", || descriptors() < before);
    let mut rest = Vec::new();
    let _ = silent.stream.read_to_end(&mut rest);
    assert!(rest.len() < 20 * 900_000);
}

#[test]
fn requests_over_the_limit_of_their_token_are_refused() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_in_flight = 1\n"));
    let session = gate.session("/mcp", "2025-11-25");
    let mut sleeping = gate.connect();
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    sleeping.send("POST /mcp", &headers, &call(1, "fix__sleep", &json!({"ms": 1000})).to_string());
    assert_eq!(sleeping.head().status, 200);
    let refused = gate.legacy(&session, &call(2, "fix__pid", &json!({})));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    sleeping.until("awake");
    wait_for("room", || gate.legacy(&session, &call(3, "fix__pid", &json!({}))).status == 200);
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nrequests_per_second = 2\n"));
    let statuses: Vec<u16> = (0..8).map(|id| gate.modern(id, "server/discover", json!({})).status).collect();
    assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{statuses:?}");
}

#[test]
fn each_request_of_a_batch_counts() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_in_flight = 3\n"));
    let session = gate.session("/mcp", "2025-03-26");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let batch = |requests: u64| {
        let calls: Vec<Value> = (1..=requests).map(|id| call(id, "fix__calls", &json!({}))).collect();
        gate.ask("POST /mcp", &headers, &json!(calls).to_string())
    };
    let refused = batch(4);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{refused:?}");
    let counted = batch(3).answer();
    let texts: Vec<&str> = counted
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["result"]["content"][0]["text"].as_str().unwrap())
        .collect();
    assert!(texts.contains(&"1"), "nothing of the other has run: {texts:?}");
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nrequests_per_second = 20\n"));
    let session = gate.session("/mcp", "2025-03-26");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let calls: Vec<Value> = (0..21).map(|id| call(id, "fix__echo", &json!({"text": "x"}))).collect();
    assert_eq!(gate.ask("POST /mcp", &headers, &json!(calls).to_string()).status, 429);
}

#[test]
fn requests_of_the_old_transport_count_until_their_answer() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_in_flight = 1\nsse = true\n"));
    let mut stream = gate.connect();
    stream.send("GET /sse/fix", &[("Accept", "text/event-stream")], "");
    assert_eq!(stream.head().status, 200);
    let first = stream.until("/messages");
    let place = first.lines().find_map(|line| line.strip_prefix("data: ")).unwrap().to_owned();
    let post = |message: &Value| gate.ask(&format!("POST {place}"), &JSON, &message.to_string()).status;
    assert_eq!(post(&initialize("2024-11-05")), 202);
    stream.until("\"id\":0");
    assert_eq!(post(&call(1, "sleep", &json!({"ms": 1000}))), 202);
    assert_eq!(post(&call(2, "pid", &json!({}))), 429, "one is under way");
    stream.until("awake");
    assert_eq!(post(&call(3, "pid", &json!({}))), 202);
}

#[test]
fn who_looks_on_is_held_to_the_rate_too() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nrequests_per_second = 2\nmax_in_flight = 1\n"));
    for path in ["/live", "/metrics"] {
        let status = || gate.ask(&format!("GET {path}"), &[], "").status;
        wait_for("room", || status() == 200);
        let statuses: Vec<u16> = (0..8).map(|_| status()).collect();
        assert!(statuses.contains(&429), "{path}: {statuses:?}");
        assert_eq!(gate.ask("GET /healthz", &[], "").status, 200);
    }
}

#[test]
fn sessions_without_work_end() {
    let gate =
        Gate::new(&format!("{FIXTURE}scope = \"client\"\n[gateway]\nidle = \"400ms\"\nmax_sessions = 3\n"));
    let count = || {
        let page = gate.ask("GET /metrics", &[], "").body;
        let line = page.lines().find_map(|line| line.strip_prefix("toolcrib_gateway_sessions "));
        line.map_or(0, |value| value.parse().unwrap())
    };
    let listening = gate.session("/mcp", "2025-11-25");
    let mut general = gate.connect();
    general.send("GET /mcp", &[("Mcp-Session-Id", &*listening)], "");
    assert_eq!(general.head().status, 200);
    let idle = gate.session("/mcp", "2025-11-25");
    let own = |session: &str| gate.legacy(session, &call(1, "fix__pid", &json!({})));
    assert_ne!(own(&idle).text(), own(&listening).text(), "each has a server of its own");
    // The caller without a session keeps its server between requests.
    let modern = || gate.modern(1, "tools/call", json!({"name": "fix__pid", "arguments": {}})).text();
    assert_eq!(modern(), modern());
    assert_eq!(count(), 3);
    wait_for("the end of the idle session", || count() == 1);
    assert_eq!((own(&idle).status, own(&listening).status), (404, 200));
    let many: Vec<String> = (0..5).map(|_| gate.session("/mcp", "2025-11-25")).collect();
    assert!(count() <= 3, "the idle ones make room");
    assert_eq!((own(&many[0]).status, own(&many[4]).status, own(&listening).status), (404, 200, 200));
}

#[test]
fn who_makes_many_sessions_ends_their_own() {
    const MANY: &str = "many-token-0123456789";
    const FEW: &str = "few-token-0123456789";
    let tokens =
        format!("{{ name = \"many\", token = \"{MANY}\" }}, {{ name = \"few\", token = \"{FEW}\" }}");
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_sessions = 4\ntokens = [{tokens}]\n"));
    let begin = |token: &str| {
        let made = gate.with_token(token, "POST /mcp", None, &initialize("2025-11-25"));
        made.header("mcp-session-id").unwrap_or_else(|| panic!("{made:?}")).to_owned()
    };
    let status = |token: &str, session: &str| {
        gate.with_token(token, "POST /mcp", Some(session), &call(1, "fix__pid", &json!({}))).status
    };
    let few = begin(FEW);
    let many: Vec<String> = (0..8).map(|_| begin(MANY)).collect();
    assert_eq!((status(MANY, &many[4]), status(MANY, &many[5]), status(FEW, &few)), (404, 200, 200));
    // Who has fewer takes the place of who has most, up to the same number.
    let second = begin(FEW);
    let kept = many[5..].iter().filter(|session| status(MANY, session) == 200).count();
    assert_eq!((kept, status(FEW, &few), status(FEW, &second)), (2, 200, 200));
    let third = begin(FEW);
    let kept = many[5..].iter().filter(|session| status(MANY, session) == 200).count();
    assert_eq!((kept, status(FEW, &third)), (2, 200), "more it has at its own expense");
}

#[test]
fn calls_that_wait_for_input_count() {
    let rich = "[servers.rich]\ncommand = FIXTURE\nargs = [\"rich\"]\n";
    let gate = Gate::new(&format!("{rich}[gateway]\nmax_in_flight = 2\n"));
    let ask = |name: &str, more: &Value| {
        let arguments = json!({"method": "elicitation/create", "params": {"message": "?"}});
        let mut params = json!({"name": name, "arguments": arguments});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (headers, mut message) = modern(1, "tools/call", params);
        message["params"]["_meta"][CAPABILITIES] = json!({"elicitation": {}});
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        gate.ask("POST /mcp", &headers, &message.to_string())
    };
    let asked: Vec<Value> = (0..6).map(|_| ask("rich__ask", &json!({})).answer()).collect();
    assert!(asked.iter().all(|asked| asked["result"]["resultType"] == "input_required"), "{asked:?}");
    wait_for("the end of all but two", || ask("rich__cancelled", &json!({})).text() == "4");
    let go_on = |asked: &Value| {
        let asked = &asked["result"];
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap();
        let said = json!({key: {"action": "accept"}});
        ask("rich__ask", &json!({"requestState": asked["requestState"], "inputResponses": said})).answer()
    };
    assert!(go_on(&asked[5])["result"].to_string().contains("accept"));
    assert!(go_on(&asked[4])["result"].to_string().contains("accept"));
    assert!(go_on(&asked[3])["error"]["message"].to_string().contains("requestState"));
}

#[test]
fn open_streams_keep_no_other_token_out() {
    const MANY: &str = "many-token-0123456789";
    const FEW: &str = "few-token-0123456789";
    let tokens =
        format!("{{ name = \"many\", token = \"{MANY}\" }}, {{ name = \"few\", token = \"{FEW}\" }}");
    let limits = format!("[gateway]\nmax_sessions = 4\nsse = true\ntokens = [{tokens}]\n");
    let gate = Gate::new(&format!("{FIXTURE}{limits}"));
    let make = |token: &str| gate.with_token(token, "POST /mcp", None, &initialize("2025-11-25"));
    let listen = |token: &str, path: &str, session: &str| {
        let mut stream = gate.connect();
        let bearer = format!("Bearer {token}");
        let headers =
            [("Accept", "text/event-stream"), ("Authorization", &bearer), ("Mcp-Session-Id", session)];
        stream.send(&format!("GET {path}"), &headers, "");
        let status = stream.head().status;
        (status, stream)
    };
    let begin = |token: &str| {
        let session = make(token).header("mcp-session-id").unwrap().to_owned();
        let (status, stream) = listen(token, "/mcp", &session);
        assert_eq!(status, 200);
        (session, stream)
    };
    let mut many: Vec<_> = (0..4).map(|_| begin(MANY)).collect();
    assert_eq!(make(MANY).status, 503, "not at its own expense");
    // One of them is at work.
    let bearer = format!("Bearer {MANY}");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*many[0].0), ("Authorization", &*bearer)]].concat();
    let mut working = gate.connect();
    working.send("POST /mcp", &headers, &call(1, "fix__sleep", &json!({"ms": 3000})).to_string());
    assert_eq!(working.head().status, 200);
    let _few = [begin(FEW), begin(FEW)];
    assert_eq!(make(FEW).status, 503, "each has half of them");
    for (_, stream) in &mut many[1..3] {
        while !stream.part().is_empty() {}
    }
    working.until("awake");
    let _many: Vec<_> = (0..4).map(|_| listen(MANY, "/sse", "")).collect();
    let [(first, _one), (second, _two), (third, _)] = [(); 3].map(|()| listen(FEW, "/sse", ""));
    assert_eq!([first, second, third], [200, 200, 503]);
}

#[test]
fn two_hundred_clients_are_served_at_once() {
    let gate = Gate::new(FIXTURE);
    // One asks for much and reads nothing, and one leaves in the middle.
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let mut silent: Vec<Connection> = (0..10).map(|_| gate.connect()).collect();
    for (id, connection) in (1..).zip(&mut silent) {
        connection.send("POST /mcp", &headers, &call(id, "fix__big", &json!({"bytes": 900_000})).to_string());
    }
    let mut gone = gate.connect();
    gone.send("POST /mcp", &headers, &call(9, "fix__sleep", &json!({"ms": 300})).to_string());
    drop(gone);
    let clients: Vec<_> = (0..200)
        .map(|number| {
            let address = gate.address.clone();
            std::thread::spawn(move || {
                let mut connection = Connection::new(&address);
                for round in 0..5 {
                    let text = format!("{number}-{round}");
                    let params = json!({"name": "fix__echo", "arguments": {"text": text}});
                    let (headers, message) = modern(round, "tools/call", params);
                    let headers: Vec<(&str, &str)> =
                        headers.iter().map(|(name, value)| (*name, &**value)).collect();
                    let reply = connection.ask("POST /mcp", &headers, &message.to_string());
                    assert_eq!((reply.text(), &reply.answer()["id"]), (text, &json!(round)));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    for connection in &mut silent {
        assert_eq!(connection.reply().text().len(), 900_000);
    }
}
