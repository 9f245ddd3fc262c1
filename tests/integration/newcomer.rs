//! What stops somebody who uses the program for the first time: arguments, names, logs, and servers that do not start.


use crate::{
    daemon::Crib,
    program::{Bench, code, err, out},
};

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
