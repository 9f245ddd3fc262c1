//! Failures during a command: killed daemons, stopped servers, broken entries.

use std::{
    fs,
    io::{BufRead, BufReader},
};

use super::{Crib, FIXTURE};
use crate::{
    support::program::{code, err},
    support::{parent, signal, wait_for},
};

#[test]
fn a_call_whose_server_is_stopped_is_lost() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let call = crib.spawn(&["call", "fix.sleep", "ms=600000", "--timeout", "20m"]);
    // What it has not read is taken back, and has not run.
    wait_for("the call", || crib.ok(&["call", "fix.in_flight"]) == "1");
    crib.ok(&["stop", "fix"]);
    let call = call.wait_with_output().unwrap();
    assert_eq!(code(&call), 4, "{}", err(&call));
    assert!(
        err(&call).contains(
            "server `fix` was stopped during `sleep` (outcome unknown, it was sent once and may have run)"
        ),
        "{}",
        err(&call)
    );
}

#[test]
fn only_a_sent_call_may_have_run_when_its_daemon_is_killed() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let call = crib.spawn(&["call", "fix.sleep", "ms=600000", "--timeout", "20m"]);
    let wait = crib.spawn(&["logs", "-f"]);
    crib.await_server("fix", |row| row["in_flight"] == 1);
    signal("KILL", crib.pid());
    let [call, logs] = [call, wait].map(|child| child.wait_with_output().unwrap());
    assert_eq!(code(&call), 4, "as of every call that may have run: {}", err(&call));
    for words in ["ended before it answered", "outcome unknown, `fix.sleep` may have run"] {
        assert!(err(&call).contains(words), "{}", err(&call));
    }
    assert!(!err(&logs).contains("may have run"), "{}", err(&logs));
}

#[test]
fn a_call_that_is_interrupted_may_have_run() {
    let crib = Crib::new(&format!("[defaults]\nslow_call_notice = \"50ms\"\n{FIXTURE}"));
    let mut call = crib.spawn(&["call", "--no-daemon", "fix.sleep", "ms=600000", "--timeout", "20m"]);
    let mut lines = BufReader::new(call.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("no answer")), "it was sent");
    signal("INT", call.id());
    let told: Vec<String> = lines.collect();
    assert!(
        told.iter().any(|line| line.contains("cancelled (outcome unknown, `fix.sleep` may have run)")),
        "{told:?}"
    );
    assert_eq!(call.wait().unwrap().code(), Some(130));
}

#[test]
fn every_command_reports_an_invalid_entry() {
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\n");
    crib.ok(&["up", "-d"]);
    let pid = crib.ok(&["call", "fix.pid"]);
    let file = crib.bench.0.path().join("servers.toml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}cwd = \"${{NEVER_SET_ANYWHERE}}\"\n")).unwrap();
    for command in [&["call", "fix.pid"][..], &["up", "-d"], &["start", "fix"], &["restart", "fix"]] {
        let output = crib.run(command);
        assert_eq!(code(&output), 0, "{}", err(&output));
        let words = "server `fix` keeps its old entry";
        assert!(
            err(&output).contains(words) && err(&output).contains("NEVER_SET_ANYWHERE"),
            "{}",
            err(&output)
        );
    }
    fs::write(&file, &text).unwrap();
    let mended = crib.run(&["call", "fix.pid"]);
    assert!(!err(&mended).contains("old entry"), "{}", err(&mended));
    assert_ne!(crib.ok(&["call", "fix.pid"]), pid, "the restart was one");
}

#[toolcrib_testing::requires(guard)]
#[test]
fn down_waits_for_the_servers_of_a_killed_daemon() {
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\nargs = [\"ignore-eof\", \"ignore-term\"]\n");
    crib.ok(&["up", "-d"]);
    let mut call = crib.spawn(&["call", "fix.sleep", "ms=600000", "--timeout", "20m"]);
    crib.await_server("fix", |row| row["in_flight"] == 1);
    signal("KILL", crib.pid());
    call.wait().unwrap();
    let down = crib.run(&["down"]);
    // At once: `down` has waited.
    assert_eq!(crib.lab.processes(), Vec::<u32>::new(), "{}", err(&down));
    assert_eq!(code(&down), 0, "{}", err(&down));
    assert!(err(&down).contains("0 processes left"), "{}", err(&down));
    assert_eq!(crib.files(), Vec::<std::path::PathBuf>::new());
}

#[toolcrib_testing::requires(guard)]
#[test]
fn down_wakes_the_guards_of_a_killed_daemon() {
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\nargs = [\"ignore-eof\", \"ignore-term\"]\n");
    crib.ok(&["up", "-d"]);
    let guards = crib.lab.guards();
    let [guard] = guards[..] else { panic!("{guards:?}") };
    // Neither of them hears that the daemon is gone.
    for pid in [guard, parent(guard).unwrap()] {
        signal("STOP", pid);
    }
    signal("KILL", crib.pid());
    let down = crib.run(&["down"]);
    assert_eq!(crib.lab.processes(), Vec::<u32>::new(), "{}", err(&down));
    assert_eq!(code(&down), 0, "{}", err(&down));
    assert_eq!(crib.files(), Vec::<std::path::PathBuf>::new());
}

#[toolcrib_testing::requires(guard, python3)]
#[test]
fn a_server_holding_a_dead_daemons_lock_blocks_nothing() {
    let crib = Crib::new(FIXTURE);
    crib.ok(&["up", "-d"]);
    let locks = || crib.files().into_iter().filter(|file| file.extension() == Some("lock".as_ref()));
    let lock = locks().next().unwrap();
    // A server of another daemon waits for the lock, for which it needs no more than to read the file.
    let holder = crib.folder().join("holder.py");
    let script = "import fcntl, sys, threading, time\n\
        def hold():\n    \
            file = open(sys.argv[1])\n    \
            fcntl.flock(file, fcntl.LOCK_EX)\n    \
            open(sys.argv[2], \"w\").close()\n    \
            time.sleep(600)\n\
        threading.Thread(target=hold, daemon=True).start()\n\
        sys.stdin.read()";
    fs::write(&holder, script).unwrap();
    let held = crib.folder().join("held");
    let other = Crib::new(&format!(
        "[servers.holder]\ncommand = \"/usr/bin/python3\"\nargs = [{holder:?}, {lock:?}, {held:?}]\nstartup_timeout = \"5m\"\n"
    ));
    let mut up = other.spawn(&["up", "-d"]);
    let inode = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&lock).unwrap());
    wait_for("the one that waits", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&format!(":{inode} ")))
    });
    for arguments in [&["up", "-d"][..], &["down"]] {
        let pid = crib.pid();
        signal("KILL", pid);
        if arguments == ["up", "-d"] {
            wait_for("the holder", || held.exists());
        }
        let begun = std::time::Instant::now();
        crib.ok(arguments);
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{arguments:?} waited");
    }
    assert_eq!(crib.lab.processes(), Vec::<u32>::new());
    assert_eq!(crib.files(), Vec::<std::path::PathBuf>::new());
    up.kill().unwrap();
    up.wait().unwrap();
    other.ok(&["down"]);
}

#[test]
fn down_finds_the_daemon_of_a_removed_configuration() {
    let crib = Crib::new(FIXTURE);
    for arguments in [&["down"][..], &["down", "-c", "servers.toml"]] {
        let file = crib.bench.0.path().join("servers.toml");
        let text = fs::read(&file).unwrap();
        crib.ok(&["up", "-d"]);
        fs::remove_file(&file).unwrap();
        crib.ok(arguments);
        assert_eq!(crib.lab.processes(), Vec::<u32>::new());
        fs::write(&file, text).unwrap();
    }
}
