//! What stops somebody who uses the program for the first time: arguments, names, logs, and servers that do not start.


use crate::{
    daemon::Crib,
    program::{Bench, code, err, out},
};

#[test]
fn a_variable_that_the_daemon_does_not_have_is_said_to_be_missing_there() {
    let crib = Crib::new("[servers.late]\ncommand = FIXTURE\n[servers.time]\nbuiltin = \"time\"\n");
    let file = crib.folder().join("servers.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("env = { ", "env = { GIVEN = \"${LATE_KEY}\", ")).unwrap();
    crib.ok(&["up", "-d"]);
    let pid = crib.pid();
    for command in [&["restart", "late"][..], &["start", "late"], &["up", "-d"], &["call", "late.env"]] {
        let output = crib.command(command).env("LATE_KEY", "set-in-this-shell").output().unwrap();
        // `up -d` tells of a server that is missing, and does not fail for one that is not required.
        assert_eq!(
            code(&output),
            if command[0] == "up" {
                0
            } else if command[0] == "call" {
                3
            } else {
                4
            }
        );
        if command[0] != "up" {
            let here =
                format!("needs the variable LATE_KEY, which is not set in the running daemon (pid {pid})");
            assert!(err(&output).contains(&here), "{command:?}: {}", err(&output));
            assert!(
                err(&output).contains("`toolcrib down` and `toolcrib up -d`"),
                "{command:?}: {}",
                err(&output)
            );
        }
    }
    let told = crib.ok(&["ps", "--wide"]);
    assert!(told.contains("not set in the running daemon"), "{told}");
    // The way out that was told.
    crib.ok(&["down"]);
    let up = crib.command(&["up", "-d"]).env("LATE_KEY", "set-in-this-shell").output().unwrap();
    assert_eq!(code(&up), 0, "{}", err(&up));
    assert!(crib.ok(&["call", "late.env"]).contains("GIVEN"));
}

/// What npm 11 prints for a package that does not exist.
const NPM: &str = "npm error code E404\n\
    npm error 404 Not Found - GET https://registry.npmjs.org/@scope%2fserver-zzz\n\
    npm error 404\n\
    npm error 404  The requested resource '@scope/server-zzz@*' could not be found or you do not have permission.\n\
    npm error 404\n\
    npm error 404 Note that you can also install from a\n\
    npm error 404 tarball, folder, http url, or git url.\n\
    npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log\n";

#[test]
fn a_server_that_does_not_start_shows_the_line_that_matters_and_fitting_advice() {
    let config = "[servers.npm]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"cat npm.txt >&2; exit 1\"]\n";
    let bench = Bench::new(config);
    bench.file("npm.txt", NPM);
    let check = bench.run(&["check"]);
    let text = err(&check);
    assert!(
        text.contains("| npm error 404 Not Found - GET https://registry.npmjs.org/@scope%2fserver-zzz"),
        "{text}"
    );
    assert!(text.contains("= help:  the npm registry has no package `@scope/server-zzz`"), "{text}");

    let crib = Crib::new(config);
    std::fs::write(crib.folder().join("npm.txt"), NPM).unwrap();
    crib.run(&["up", "-d"]);
    let told = crib.ok(&["ps", "--wide"]);
    let row = told.lines().find(|line| line.starts_with("npm ")).unwrap();
    assert!(row.contains("npm error 404 Not Found - GET"), "{row}");
    assert!(
        row.contains("the npm registry has no package `@scope/server-zzz`: check the name in `args`"),
        "{row}"
    );
    assert!(!row.contains("A complete log"), "{row}");
}

#[test]
fn a_bare_program_name_without_path_is_told_what_is_missing() {
    let bench = Bench::new("[defaults]\ninherit_env = []\n[servers.x]\ncommand = \"npx\"\n");
    let output = bench.run(&["check"]);
    assert!(err(&output).contains("the environment of the server has no PATH"), "{}", err(&output));
    assert!(!err(&output).contains("install Node.js"), "{}", err(&output));
}
