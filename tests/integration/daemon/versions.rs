//! Daemons of other versions: an older one is replaced, calls under way included; a newer one is understood or
//! named.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::PathBuf,
    thread::{self, JoinHandle},
};

use serde_json::json;

use super::{Crib, FIXTURE, frame};
use crate::{
    support::program::{code, err, out},
    support::wait_for,
};

/// Where the daemon of this bench listens.
fn place(crib: &Crib) -> PathBuf {
    crib.ok(&["up", "-d"]);
    let socket = crib.socket();
    crib.ok(&["down"]);
    socket
}

/// Greets one client as a daemon of that version; what it was asked then.
fn greet(socket: PathBuf, version: &str, protocol: u32, answer: &'static str) -> JoinHandle<String> {
    let listener = UnixListener::bind(&socket).unwrap();
    let greeting = json!({"greeting": {"protocol": protocol, "toolcrib": version, "pid": 1, "mark": "none",
        "config": "servers.toml", "edition": "0"}});
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        writeln!(stream, "{greeting}").unwrap();
        let mut asked = String::new();
        let _ = BufReader::new(stream.try_clone().unwrap()).read_line(&mut asked);
        // As the real one: the place is free before it says so.
        drop(listener);
        std::fs::remove_file(socket).unwrap();
        let _ = writeln!(stream, "{answer}");
        asked.trim().to_owned()
    })
}

#[test]
fn a_newer_command_replaces_an_older_daemon() {
    let crib = Crib::new(FIXTURE);
    let retired = r#"{"retired":{"calls":2,"idle_ms":60000.0,"only":null,"metrics":"127.0.0.1:0"}}"#;
    let old = greet(place(&crib), "0.0.9", 1, retired);
    let call = crib.run(&["call", "fix.echo", "text=new"]);
    assert_eq!((code(&call), out(&call).trim()), (0, "new"), "{}", err(&call));
    assert!(
        err(&call).contains("the daemon of toolcrib 0.0.9 (pid 1, which finishes 2 calls)"),
        "{}",
        err(&call)
    );
    assert_eq!(old.join().unwrap(), "\"retire\"");
    assert_eq!(crib.status()["daemon"]["idle_ms"], 60_000.0, "on the same terms");
    assert!(crib.status()["daemon"]["metrics"].is_string());
}

#[test]
fn a_newer_daemon_is_used_if_compatible() {
    let crib = Crib::new(FIXTURE);
    let socket = place(&crib);
    let same = greet(socket.clone(), "99.0.0", 1, r#"{"servers":[]}"#);
    assert_eq!(code(&crib.run(&["wait"])), 0);
    assert_eq!(same.join().unwrap(), r#"{"wait":{"servers":[]}}"#);
    let other = greet(socket, "99.0.0", 2, "");
    let wait = crib.run(&["wait"]);
    assert_eq!(code(&wait), 2);
    assert!(err(&wait).contains("the daemon is of toolcrib 99.0.0") && err(&wait).contains("toolcrib down"));
    assert_eq!(other.join().unwrap(), "", "it was asked nothing");
}

#[test]
fn a_replaced_daemon_finishes_its_calls() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let old = crib.pid();
    let call = crib.spawn(&["call", "fix.sleep", "ms=3000"]);
    crib.await_server("fix", |row| row["in_flight"] == 1);
    let (mut stream, mut reader, _) = crib.raw();
    stream.write_all(b"\"retire\"\n").unwrap();
    let retired = frame(&mut reader);
    assert!(retired["retired"]["calls"].is_u64(), "{retired}");
    crib.ok(&["up", "-d"]);
    assert_ne!(crib.pid(), old, "there are two for a while");
    let output = call.wait_with_output().unwrap();
    assert_eq!((code(&output), out(&output).trim()), (0, "awake"), "{}", err(&output));
    wait_for("the end of the old daemon", || !crib.lab.processes().contains(&old));
    assert_eq!(crib.ok(&["call", "fix.echo", "text=new"]), "new");
}
