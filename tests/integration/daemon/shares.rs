//! Connections to the socket that ask nothing or send half a request: others are served.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{Crib, FIXTURE, frame};

/// Many connections of this process that say nothing.
fn silent(crib: &Crib, count: usize) -> Vec<UnixStream> {
    let socket = crib.socket();
    (0..count).filter_map(|_| UnixStream::connect(&socket).ok()).collect()
}

#[test]
fn connections_that_ask_nothing_keep_nobody_out() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let held = silent(&crib, 600);
    let began = Instant::now();
    assert_eq!(crib.ok(&["call", "fix.echo", "text=x"]), "x");
    assert!(began.elapsed() < Duration::from_secs(9), "it did not wait for their end: {:?}", began.elapsed());
    drop(held);
}

#[test]
fn a_process_without_a_request_is_told_so_after_ten_seconds() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let (stream, mut reader, _greeting) = crib.raw();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let told = frame(&mut reader);
    assert!(told.to_string().contains("no request came within 10 s"), "{told}");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn half_requests_of_a_process_are_bounded_together() {
    let crib = Crib::new(&format!("{FIXTURE}[gateway]\nmax_held = \"8MiB\"\n"));
    crib.ok(&["up", "-d"]);
    // Values take many times their text.
    let (mut stream, mut reader, _greeting) = crib.raw();
    let call = json!({"call": {"tool": "fix.echo", "values": {"x": vec![0; 500_000]}, "texts": {}, "timeout_ms": null, "unchecked": true}});
    // At once: a request has ten seconds.
    stream.write_all(format!("{call}\n").as_bytes()).unwrap();
    let told = frame(&mut reader);
    assert!(told.to_string().contains("max_held"), "{told}");
    let half = format!("{{\"call\":\"{}", "x".repeat(3 << 20));
    let mut held = Vec::new();
    let refused = (0..8).find_map(|_| {
        let (mut stream, mut reader, _greeting) = crib.raw();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let sent = stream.write_all(half.as_bytes());
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut told = String::new();
        let _ = reader.read_to_string(&mut told);
        held.push(stream);
        (sent.is_err() || !told.is_empty()).then_some(told)
    });
    let told = refused.expect("all of them are held");
    assert!(told.contains("max_held") && told.contains(&format!("process {}", std::process::id())), "{told}");
    assert_eq!(crib.ok(&["call", "fix.echo", "text=x"]), "x", "another process has a budget of its own");
    drop(held);
}
