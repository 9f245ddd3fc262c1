//! The Python program of templates, by itself: `tests/templates` plays the zygote, the guard and the manager, and compares
//! each server with the same one started in the ordinary way.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

fn check(args: &[PathBuf]) -> String {
    let mut command = Command::new("/usr/bin/python3");
    command.arg(root().join("tests/templates/check.py")).args(args).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("no difference\n"), "{text}\n{errors}");
    text
}

#[toolcrib_testing::requires(python3_venv)]
#[test]
fn a_forked_server_sees_what_an_ordinary_one_sees() {
    let text = check(&["/usr/bin/python3".into()]);
    assert!(text.contains("starts compared"), "{text}");
}

#[toolcrib_testing::requires(python3_venv)]
#[test]
fn what_imports_change_or_make_by_chance_is_no_others() {
    check(&["--effects".into(), "/usr/bin/python3".into()]);
}

#[toolcrib_testing::requires(python3_venv, public_servers)]
#[test]
fn forked_public_servers_answer_as_ordinary_ones() {
    let text = check(&["--servers".into(), root().join("tests/servers/venv")]);
    assert!(text.contains("ms of CPU each"), "{text}");
}
