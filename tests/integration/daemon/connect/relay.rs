//! `toolcrib connect` when its daemon is killed: the client goes on with the next one.

use std::io::Write as _;

use serde_json::json;

use super::{Client, Crib, FIXTURE, frame};
use crate::support::{signal, wait_for};

/// Checks that nothing is kept of a line that is too long, and that the conversation goes on.
#[test]
#[cfg(target_os = "linux")]
fn lines_that_are_too_long_are_refused_unkept() {
    let crib = Crib::new(FIXTURE);
    let mut client = Client::new(&crib, &[]);
    let part = "x".repeat(1 << 20);
    for _ in 0..64 {
        write!(client.stdin.as_mut().unwrap(), "{part}").unwrap();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", client.child.id())).unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let held: usize = held.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(held < 56 << 10, "{held} KiB");
    writeln!(client.stdin.as_mut().unwrap()).unwrap();
    // What is new may come before it.
    let refused = loop {
        let message = frame(&mut client.stdout);
        if message.get("method").is_none() {
            break message;
        }
    };
    assert!(refused["error"]["message"].as_str().unwrap().contains("too long"), "{refused}");
    assert!(client.ask("ping", &json!({})).get("result").is_some());
}

#[test]
fn a_client_outlives_a_killed_daemon() {
    let crib = Crib::new(FIXTURE);
    let mut client = Client::new(&crib, &[]);
    client.ask("logging/setLevel", &json!({"level": "error"}));
    for round in 0..2 {
        let before = crib.pid();
        let open = client.request("tools/call", &json!({"name": "fix__sleep", "arguments": {"ms": 600_000}}));
        crib.await_server("fix", |row| row["in_flight"] == 1);
        signal("KILL", before);
        // What was under way, and perhaps what is new, before it.
        let told = loop {
            let message = frame(&mut client.stdout);
            if message.get("method").is_none() {
                break message;
            }
        };
        assert_eq!(
            (&told["id"], &told["error"]["data"]["code"]),
            (&json!(open), &json!("session_lost")),
            "{told}"
        );
        assert!(told["error"]["message"].as_str().unwrap().contains("outcome unknown"), "{told}");
        // The next call is served, by the next daemon.
        let answer = client.call("fix__echo", &json!({"text": format!("round {round}")}));
        assert_eq!(answer["result"]["content"][0]["text"], format!("round {round}"), "{answer}");
        assert!(client.changed > round, "lists may have changed");
        assert_ne!(crib.pid(), before);
    }
    drop(client.stdin.take());
    assert!(client.child.wait().unwrap().success());
}

#[test]
fn a_client_between_calls_does_not_notice_a_kill() {
    let crib = Crib::new(FIXTURE);
    let mut client = Client::new(&crib, &["fix"]);
    let before = crib.pid();
    signal("KILL", before);
    // Its files are closed once its last thread has ended; who has to reap it may not do so.
    wait_for("the end of the daemon", || {
        let threads = std::fs::read_dir(format!("/proc/{before}/task")).map_or(0, Iterator::count);
        let stat = std::fs::read_to_string(format!("/proc/{before}/stat"));
        threads < 2 && stat.map_or(true, |stat| stat.contains(") Z "))
    });
    let answer = client.call("echo", &json!({"text": "on"}));
    assert_eq!(answer["result"]["content"][0]["text"], "on", "{answer}");
}
