//! Connections that ask nothing: they keep no client out, and no server from starting again.

use std::process::Command;

use super::*;

/// The same command in a shell that has changed its limits before.
fn with_limits(command: &Command, script: &str) -> Command {
    let mut changed = Command::new("/bin/sh");
    changed.args(["-c", &format!("{script}; exec \"$0\" \"$@\"")]).arg(command.get_program());
    changed.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => changed.env(name, value),
            None => changed.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        changed.current_dir(folder);
    }
    changed
}

/// A gate whose limits of files a shell has set.
fn limited(config: &str, script: &str) -> Gate {
    Gate::by(Crib::new(config), &[], |command| with_limits(command, script))
}

/// Connections that send nothing.
fn silent(gate: &Gate, count: usize) -> Vec<TcpStream> {
    // The server may close some before all are there.
    (0..count).filter_map(|_| TcpStream::connect(&gate.address).ok()).collect()
}

#[test]
fn silent_connections_keep_nobody_out() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_connections = 4\n"));
    let mut kept = gate.connect();
    assert_eq!(kept.ask("GET /healthz", &[], "").status, 200);
    let mut working = gate.connect();
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    working.send("POST /mcp", &headers, &call(1, "fix__sleep", &json!({"ms": 2000})).to_string());
    let _silent = silent(&gate, 20);
    for _ in 0..5 {
        assert_eq!(gate.ask("GET /healthz", &[], "").status, 200);
    }
    assert_eq!(kept.ask("GET /healthz", &[], "").status, 200, "who asked before goes after who never did");
    assert_eq!(working.reply().text(), "awake");
}

#[test]
fn connections_that_ask_once_keep_nobody_out() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_connections = 3\n"));
    let idle: Vec<Connection> = (0..6)
        .map(|_| {
            let mut connection = gate.connect();
            assert_eq!(connection.ask("GET /healthz", &[], "").status, 200);
            connection
        })
        .collect();
    let mut begun = gate.connect();
    begun.stream.get_mut().write_all(b"POST /mcp HTTP/1.1\r\nHost: ").unwrap();
    for _ in 0..4 {
        assert_eq!(gate.ask("GET /healthz", &[], "").status, 200);
    }
    drop(idle);
}

#[test]
fn a_connection_without_a_byte_ends_after_five_seconds() {
    let gate = Gate::new(FIXTURE);
    let mut silent = gate.connect();
    let began = std::time::Instant::now();
    let mut rest = Vec::new();
    silent.stream.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() && began.elapsed() < Duration::from_secs(20));
}

#[test]
#[cfg(target_os = "linux")]
fn servers_start_again_beside_many_connections() {
    let gate = limited(FIXTURE, "ulimit -n 300");
    let session = gate.session("/mcp", "2025-11-25");
    let _silent = silent(&gate, 400);
    gate.legacy(&session, &call(1, "fix__die", &json!({})));
    wait_for("the server", || {
        gate.legacy(&session, &call(2, "fix__pid", &json!({}))).answer().get("result").is_some()
    });
    let files = std::fs::read_dir(format!("/proc/{}/fd", gate.child.id())).unwrap().count();
    assert!(files < 200, "{files}");
}

#[test]
#[cfg(target_os = "linux")]
fn servers_have_the_limit_of_files_from_before() {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let server = format!("\"ulimit -Sn > files; exec {}\"", crate::support::FIXTURE);
    let config = format!("[servers.fix]\ncommand = \"/bin/sh\"\nargs = [\"-c\", {server}]\n");
    let gate = limited(&config, "ulimit -Sn 300");
    let session = gate.session("/mcp", "2025-11-25");
    assert!(gate.legacy(&session, &call(1, "fix__pid", &json!({}))).answer().get("result").is_some());
    let theirs = std::fs::read_to_string(gate.crib.folder().join("files")).unwrap();
    assert_eq!(theirs.trim(), "300");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", gate.child.id())).unwrap();
    let own = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let own = own.split_whitespace().nth(3).unwrap();
    assert!(hard.is_none_or(|hard| own == hard.to_string()), "{own}");
}

/// A token that takes all connections, by streams of news and by messages that never come, keeps nobody out.
#[test]
fn no_token_takes_all_connections() {
    const MANY: &str = "many-token-0123456789";
    const FEW: &str = "few-token-0123456789";
    let tokens =
        format!("{{ name = \"many\", token = \"{MANY}\" }}, {{ name = \"few\", token = \"{FEW}\" }}");
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_connections = 16\ntokens = [{tokens}]\n"));
    let listen = |token: &str| {
        let bearer = format!("Bearer {token}");
        let (headers, message) = modern(1, "subscriptions/listen", json!({"notifications": {}}));
        let headers = headers.iter().map(|(name, value)| (*name, &**value));
        let headers: Vec<(&str, &str)> = headers.chain([("Authorization", &*bearer)]).collect();
        let mut stream = gate.connect();
        stream.send("POST /mcp", &headers, &message.to_string());
        (stream.head().status, stream)
    };
    let slow = || {
        let mut stream = gate.connect();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {MANY}\r\nContent-Type: application/json\r\n\
             Content-Length: 1000\r\n\r\n",
            gate.address
        );
        stream.stream.get_mut().write_all(head.as_bytes()).unwrap();
        stream
    };
    let halves: Vec<Connection> = (0..20).map(|_| slow()).collect();
    let answer = || gate.with_token(FEW, "POST /mcp", None, &initialize("2025-11-25")).status;
    assert_eq!((answer(), gate.ask("GET /healthz", &[], "").status), (200, 200));
    drop(halves);
    let mut streams: Vec<_> = (0..20).map(|_| listen(MANY)).collect();
    assert!(streams.iter().any(|(status, _)| *status == 503), "an eighth is kept for others");
    for _ in 0..3 {
        assert_eq!((answer(), gate.ask("GET /healthz", &[], "").status), (200, 200));
    }
    let few: Vec<_> = (0..6).map(|_| listen(FEW)).collect();
    assert!(few.iter().all(|(status, _)| *status == 200));
    let (_, oldest) = &mut streams[0];
    let mut rest = Vec::new();
    let _ = oldest.stream.read_to_end(&mut rest);
    assert_eq!((answer(), gate.ask("GET /healthz", &[], "").status), (200, 200));
}

#[test]
fn connections_wait_while_all_are_at_work() {
    let gate = Gate::new(&format!("{FIXTURE}[gateway]\nmax_connections = 2\n"));
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let mut held: Vec<Connection> = (1..3)
        .map(|id| {
            let mut connection = gate.connect();
            let sleep = call(id, "fix__sleep", &json!({"ms": 6000})).to_string();
            connection.send("POST /mcp", &headers, &sleep);
            // Its stream has begun.
            assert_eq!(connection.head().status, 200);
            connection
        })
        .collect();
    let mut waiting = gate.connect();
    waiting.send("GET /healthz", &[], "");
    waiting.stream.get_mut().set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut byte = [0];
    assert!(waiting.stream.read_exact(&mut byte).is_err(), "there are two already");
    for connection in &mut held {
        connection.until("awake");
    }
    waiting.stream.get_mut().set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(waiting.head().status, 200);
}
