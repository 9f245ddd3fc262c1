//! What stops somebody who uses the program for the first time: arguments, names, logs, and servers that do not start.


use crate::{
    program::{Bench, code, err, out},
};

#[test]
fn a_bare_program_name_without_path_is_told_what_is_missing() {
    let bench = Bench::new("[defaults]\ninherit_env = []\n[servers.x]\ncommand = \"npx\"\n");
    let output = bench.run(&["check"]);
    assert!(err(&output).contains("the environment of the server has no PATH"), "{}", err(&output));
    assert!(!err(&output).contains("install Node.js"), "{}", err(&output));
}
