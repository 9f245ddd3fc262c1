//! What `up -d` refuses before it starts a daemon, or because one runs.

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
