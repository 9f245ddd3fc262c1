//! `up -d --metrics`: what a daemon shows to Prometheus.

use std::{
    io::Write as _,
    net::{TcpListener, TcpStream},
};

use serde_json::json;

use super::{Crib, FIXTURE, frame};
use crate::support::{
    program::{code, err},
    scrape::{check_with_promtool, get, metrics_address, value},
    wait_for,
};

/// A daemon that serves metrics, and where.
fn daemon() -> (Crib, String) {
    let crib = Crib::new(FIXTURE);
    let up = crib.run(&["up", "-d", "--metrics", "127.0.0.1:0"]);
    assert_eq!(code(&up), 0, "{}", err(&up));
    let address = metrics_address(&err(&up)).unwrap_or_else(|| panic!("{}", err(&up)));
    (crib, address)
}

#[test]
fn a_daemon_counts_the_calls_of_its_clients() {
    let (crib, address) = daemon();
    crib.ok(&["call", "fix.echo", "text=1"]);
    crib.ok(&["call", "fix.echo", "text=2"]);
    let text = get(&address, "/metrics");
    for line in [
        "toolcrib_tool_calls_total{server=\"fix\",tool=\"echo\",outcome=\"ok\"} 2",
        "toolcrib_server_start_seconds_count{server=\"fix\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(crib.status()["daemon"]["metrics"], *address);
    let again = crib.run(&["up", "-d", "--metrics", "127.0.0.1:0"]);
    assert!(code(&again) == 0 && metrics_address(&err(&again)) == Some(address.clone()), "{}", err(&again));
    let other = crib.run(&["up", "-d", "--metrics", "127.0.0.1:1"]);
    assert!(
        code(&other) == 2 && err(&other).contains(&format!("serves its metrics at {address}")),
        "{}",
        err(&other)
    );
    crib.ok(&["down"]);
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn metrics_follow_a_server_through_death_and_stop() {
    let (crib, address) = daemon();
    let first: u64 = value(&get(&address, "/metrics"), "toolcrib_server_start_seconds_count{server=\"fix\"}");
    let died = crib.run(&["call", "fix.die"]);
    assert_ne!(code(&died), 0);
    let restarts = "toolcrib_server_restarts_total{server=\"fix\",reason=\"restart\"}";
    wait_for("the restart", || get(&address, "/metrics").contains(restarts));
    let text = get(&address, "/metrics");
    for (series, wanted) in [
        (restarts, 1),
        ("toolcrib_server_start_seconds_count{server=\"fix\"}", first + 1),
        ("toolcrib_server_start_phase_seconds_count{server=\"fix\",phase=\"spawn\"}", first + 1),
        ("toolcrib_tool_calls_total{server=\"fix\",tool=\"die\",outcome=\"lost\"}", 1),
        ("toolcrib_server_up{server=\"fix\"}", 1),
        ("toolcrib_server_state{server=\"fix\",state=\"ready\"}", 1),
        ("toolcrib_server_state{server=\"fix\",state=\"failed\"}", 0),
    ] {
        assert_eq!(value::<u64>(&text, series), wanted, "{series}: {text}");
    }
    crib.ok(&["stop", "fix"]);
    let text = get(&address, "/metrics");
    assert!(!text.contains("toolcrib_server_up{") && text.contains(restarts), "{text}");
}

#[test]
fn many_tools_of_a_server_take_few_series() {
    let crib = Crib::new("[servers.many]\ncommand = FIXTURE\nargs = [\"pages=140\"]\n");
    let up = crib.run(&["up", "-d", "--metrics", "127.0.0.1:0"]);
    let address = metrics_address(&err(&up)).unwrap_or_else(|| panic!("{}", err(&up)));
    let (mut stream, mut reader, _) = crib.raw();
    for page in 0..140 {
        let call = json!({"call": {"tool": format!("many.page_{page}"), "values": {}, "texts": {}, "timeout_ms": null,
            "unchecked": false}});
        writeln!(stream, "{call}").unwrap();
        let answer = frame(&mut reader);
        // The server lists these tools, and has none of them.
        let why = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(why.contains("refused the call"), "{answer}");
    }
    let text = get(&address, "/metrics");
    let series = text.matches("toolcrib_tool_call_seconds_count{server=\"many\"").count();
    assert_eq!(series, 101, "{text}");
    let others = "toolcrib_tool_call_seconds_count{server=\"many\",tool=\"other\"}";
    assert_eq!(value::<u64>(&text, others), 40, "{text}");
}

#[toolcrib_testing::requires(promtool)]
#[test]
fn promtool_accepts_the_metrics_of_a_daemon() {
    let (crib, address) = daemon();
    crib.ok(&["call", "fix.echo", "text=1"]);
    check_with_promtool(&get(&address, "/metrics"));
}

#[test]
fn a_daemon_without_its_metrics_address_does_not_start() {
    let crib = Crib::new(FIXTURE);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let up = crib.run(&["up", "-d", "--metrics", &address]);
    assert!(
        code(&up) == 1 && err(&up).contains(&format!("cannot serve metrics on {address}")),
        "{}",
        err(&up)
    );
    assert_eq!(code(&crib.run(&["ps"])), 4, "no daemon is left");
    crib.ok(&["up", "-d"]);
    let late = crib.run(&["up", "-d", "--metrics", &address]);
    assert!(code(&late) == 2 && err(&late).contains("serves no metrics"), "{}", err(&late));
}

#[test]
fn a_daemon_leaves_its_metrics_address_to_the_next() {
    let (crib, address) = daemon();
    let old = crib.pid();
    let call = crib.spawn(&["call", "fix.sleep", "ms=3000"]);
    crib.await_server("fix", |row| row["in_flight"] == 1);
    let (mut stream, mut reader, _) = crib.raw();
    stream.write_all(b"\"retire\"\n").unwrap();
    let retired = frame(&mut reader);
    assert_eq!(retired["retired"]["metrics"], *address, "{retired}");
    crib.ok(&["up", "-d", "--metrics", &address]);
    assert_ne!(crib.pid(), old, "there are two for a while");
    assert!(get(&address, "/metrics").contains("start_seconds_count{server=\"fix\"} 1"));
    assert_eq!(code(&call.wait_with_output().unwrap()), 0);
    wait_for("the end of the old daemon", || !crib.lab.processes().contains(&old));
}
