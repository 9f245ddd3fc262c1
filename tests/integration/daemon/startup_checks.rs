//! Refusals of `up -d`: before it starts a daemon, or because one runs.

use super::{Crib, FIXTURE};
use crate::support::program::{code, err};

#[test]
fn a_missing_lockfile_fails_before_the_start() {
    let crib = Crib::new(FIXTURE);
    let without = crib.run(&["up", "-d", "--locked"]);
    assert_eq!(code(&without), 3, "{}", err(&without));
    assert!(err(&without).contains("write it with `toolcrib lock`"), "{}", err(&without));
    crib.ok(&["lock"]);
    crib.ok(&["up", "-d"]);
    let late = crib.run(&["up", "-d", "--locked"]);
    assert_eq!(code(&late), 3, "{}", err(&late));
    assert!(
        err(&late).contains("without --locked") && err(&late).contains("toolcrib down"),
        "{}",
        err(&late)
    );
    crib.ok(&["down"]);
    crib.ok(&["up", "-d", "--locked"]);
    crib.ok(&["up", "-d", "--locked"]);
}

#[test]
fn only_required_without_a_required_server_is_an_error() {
    let crib = Crib::new(FIXTURE);
    let up = crib.run(&["up", "-d", "--only-required"]);
    assert_eq!(code(&up), 2, "{}", err(&up));
    assert!(err(&up).contains("none of the servers is required"), "{}", err(&up));
    assert_eq!(code(&crib.run(&["ps"])), 4, "no daemon was started");
}

#[test]
fn a_daemon_names_files_by_absolute_paths() {
    let crib = Crib::new("[servers.x]\ncommand = \"sleep\"\nenv = { A = \"${NEVER_SET_ANYWHERE}\" }\n");
    let up = crib.run(&["up", "-d"]);
    let file = crib.bench.0.path().canonicalize().unwrap().join("servers.toml");
    assert!(err(&up).contains(&format!("{}:", file.display())), "{}", err(&up));
}

#[test]
fn a_variable_that_the_daemon_lacks_is_told() {
    let script = "test -n \"$LATE_TOKEN\" || { echo LATE_TOKEN is required >&2; exit 1; }; exec \"$0\"";
    let crib = Crib::new(&format!(
        "[servers.late]\ncommand = \"sh\"\nargs = [\"-c\", '{script}', FIXTURE]\ninherit_env = [\"LATE_*\"]\n"
    ));
    let set = |arguments: &[&str]| crib.command(arguments).env("LATE_TOKEN", "x").output().unwrap();
    for begin in ["up", "connect"] {
        let arguments: &[&str] = if begin == "up" { &["up", "-d"] } else { &["connect"] };
        let begun = err(&crib.run(arguments));
        let unset = "`inherit_env` names LATE_TOKEN, which is not set here: export it, then `toolcrib down` and `toolcrib up -d`";
        assert!(begin != "up" || begun.contains(unset), "{begun}");
        for command in [&["call", "late.env"][..], &["start", "late"], &["restart", "late"]] {
            let told = err(&set(command));
            let lacks = "the daemon was started without LATE_TOKEN, which is set here: `toolcrib down`, then `toolcrib up -d`";
            assert!(told.contains(lacks), "{begin}, {command:?}: {told}");
        }
        crib.ok(&["down"]);
    }
    // The advice works.
    let up = set(&["up", "-d"]);
    assert_eq!(code(&up), 0, "{}", err(&up));
    assert!(crib.ok(&["call", "late.env"]).contains("LATE_TOKEN"));
}

#[test]
fn a_daemon_without_a_ready_server_is_told() {
    let crib = Crib::new("[servers.gone]\ncommand = \"sh\"\nargs = [\"-c\", \"exit 3\"]\n");
    for time in ["first", "second"] {
        let up = crib.run(&["up", "-d"]);
        assert_eq!(code(&up), 4, "{time}: {}", err(&up));
        let told = err(&up);
        assert!(
            told.contains("0 of 1 ready") && told.contains("no server is ready, and the daemon stays"),
            "{told}"
        );
    }
    assert_eq!(code(&crib.run(&["ps"])), 0, "the daemon stays");
    crib.ok(&["up", "-d", "--wait", "none"]);
    let file = crib.folder().join("servers.toml");
    std::fs::write(file, "[servers.time]\nbuiltin = \"time\"\n").unwrap();
    crib.ok(&["up", "-d"]);
}
