//! Findings of `toolcrib doctor --store` about NATS servers.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Output,
    thread,
};

use serde_json::Value;

use crate::support::{
    nats::NatsServer,
    program::{Bench, code, err, out},
};

/// Mark and text of the findings about the store, by subject.
fn findings(output: &Output) -> Vec<(String, String, String)> {
    let document: Value = serde_json::from_str(&out(output)).unwrap_or_else(|_| panic!("{}", err(output)));
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = document["findings"].as_array().unwrap().iter();
    let rows = rows.map(|row| (text(row, "subject"), text(row, "mark"), text(row, "text")));
    rows.filter(|(subject, ..)| subject.starts_with("store")).collect()
}

fn check(store: &str, more: &[&str]) -> Output {
    Bench::new("").run(&[&["doctor", "--json", "--store", store], more].concat())
}

fn row<'a>(rows: &'a [(String, String, String)], subject: &str) -> (&'a str, &'a str) {
    let found = rows.iter().find(|(name, ..)| name == subject);
    let (_, mark, text) = found.unwrap_or_else(|| panic!("{subject}: {rows:?}"));
    (mark, text)
}

#[toolcrib_testing::requires(nats_server)]
#[test]
fn an_unsynced_server_is_warned_of() {
    for (sync, mark, words) in [
        ("sync_interval: always", "ok", "writes through"),
        ("sync_interval: \"2m\"", "warn", "loses what it has acknowledged in a power cut"),
    ] {
        let (server, monitor) = NatsServer::monitored(sync);
        let done = check(&server.url(), &["--monitor", &monitor]);
        assert_eq!(code(&done), 0, "{}", err(&done));
        let rows = findings(&done);
        let (found, text) = row(&rows, "store disk");
        assert!(found == mark && text.contains(words), "{rows:?}");
        assert_eq!(row(&rows, "store version").0, "ok");
        assert_eq!(row(&rows, "store login").0, "ok");
        assert_eq!(row(&rows, "store network"), ("ok", "without TLS, on the loopback interface"));
        assert_eq!(row(&rows, "store messages").0, "ok");
        assert!(!out(&done).contains(server.url().split(['/', '@']).nth(2).unwrap()), "it shows the token");
        // Nothing was made, and the connection alone does not show it.
        assert!(server.request("$JS.API.STREAM.NAMES", "").contains("\"total\":0"));
        let rows = findings(&check(&server.url(), &[]));
        assert_eq!(row(&rows, "store disk").0, "warn", "{rows:?}");
    }
}

#[toolcrib_testing::requires(nats_server)]
#[test]
fn copies_on_three_servers_stand_for_a_disk() {
    let servers = NatsServer::cluster();
    let urls = servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",");
    let rows = findings(&check(&urls, &[]));
    assert_eq!(row(&rows, "store disk"), ("ok", "a cluster: give --replicas 3 to the first toolcrib submit"));
    for (replicas, name, mark) in [("3", "a", "ok"), ("1", "b", "warn")] {
        let bench = Bench::new("");
        bench.file("tasks.jsonl", r#"{"input": "?"}"#);
        if name == "b" {
            for stream in [
                "toolcrib_journal",
                "toolcrib_queue",
                "KV_toolcrib_leases",
                "KV_toolcrib_runs",
                "KV_toolcrib_outcomes",
                "OBJ_toolcrib_blobs",
            ] {
                let deleted = servers[0].request(&format!("$JS.API.STREAM.DELETE.{stream}"), "");
                assert!(deleted.contains("\"success\":true"), "{deleted}");
            }
        }
        let submit = ["submit", "tasks.jsonl", "--name", name, "--store", &urls, "--replicas", replicas];
        let done = bench.run(&submit);
        assert_eq!(code(&done), 0, "{}", err(&done));
        let rows = findings(&check(&urls, &[]));
        assert_eq!(row(&rows, "store disk").0, mark, "{rows:?}");
        // The store knows how many copies it keeps.
        let ps = bench.run(&["ps", "--store", &urls]);
        assert_eq!(code(&ps), 0, "{}", err(&ps));
        let other =
            bench.run(&["submit", "tasks.jsonl", "--name", name, "--store", &urls, "--replicas", "2"]);
        assert_eq!(code(&other), 2, "{}", err(&other));
        assert!(err(&other).contains("of each record"), "{}", err(&other));
    }
}

/// A server that says what `info` adds to its greeting, and answers a ping.
fn fake(info: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let greeting = format!(
        "INFO {{\"server_id\":\"x\",\"server_name\":\"old\",\"host\":\"127.0.0.1\",\"port\":{},\"go\":\"go1\",\
         \"headers\":true,\"proto\":1,\"client_id\":1,\"jetstream\":true,{info}}}\r\n",
        place.port()
    );
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(greeting.as_bytes()).unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                if line == "PING" && stream.write_all(b"PONG\r\n").is_err() {
                    break;
                }
            }
        }
    });
    format!("nats://{place}")
}

#[test]
fn old_and_open_servers_are_refused_and_warned_of() {
    let old = fake(r#""version":"2.9.10","max_payload":1048576"#);
    let done = check(&old, &[]);
    assert_eq!(code(&done), 2, "{}", out(&done));
    let rows = findings(&done);
    assert_eq!(
        row(&rows, "store version"),
        ("fail", "version 2.9.10 can lose what it has acknowledged"),
        "{rows:?}"
    );
    assert_eq!(row(&rows, "store login").0, "warn");
    let bench = Bench::new("");
    bench.file("tasks.jsonl", r#"{"input": "?"}"#);
    let submit = bench.run(&["submit", "tasks.jsonl", "--name", "one", "--store", &old]);
    assert_eq!(code(&submit), 2, "{}", err(&submit));
    assert!(err(&submit).contains("2.10.23 or newer"), "{}", err(&submit));

    let small = fake(r#""version":"2.9.10","max_payload":65536"#);
    assert_eq!(row(&findings(&check(&small, &[])), "store messages").0, "fail");
    // Nothing listens on port 1.
    let gone = check("nats://127.0.0.1:1", &[]);
    assert_ne!(code(&gone), 0);
    assert_eq!(row(&findings(&gone), "store").0, "fail");
}
