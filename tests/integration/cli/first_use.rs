//! Obstacles of the first use: arguments, names, logs, and servers that do not start.

use std::{
    io::{BufRead, BufReader},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    support::crib::Crib,
    support::program::{Bench, code, err, out},
};

const LOOSE: &str = "[servers.fix]\ncommand = FIXTURE\nargs = [\"loose\"]\n";

/// Asks with and without a daemon: both must answer alike.
fn both(crib: &Crib, arguments: &[&str], expected: i32) -> Output {
    let alone = crib.run(&[arguments, &["--no-daemon"]].concat());
    let output = crib.run(arguments);
    for output in [&alone, &output] {
        assert_eq!(code(output), expected, "{arguments:?}: {} {}", out(output), err(output));
    }
    assert_eq!((out(&alone), err(&alone)), (out(&output), err(&output)), "{arguments:?}");
    output
}

#[test]
fn an_unknown_argument_is_refused_before_the_call() {
    let crib = Crib::new(LOOSE);
    crib.ok(&["up", "-d"]);
    let refused = both(&crib, &["call", "fix.loose", "text=a", "typo=1"], 2);
    let text = err(&refused);
    for words in [
        "`typo` is unknown",
        "it takes `text`, `tags`",
        "nothing was sent",
        "`--no-check` sends the arguments unchecked",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let near = both(&crib, &["call", "fix.loose", "txt=a"], 2);
    assert!(err(&near).contains("did you mean `text` instead of `txt`?"), "{}", err(&near));
    let closed = both(&crib, &["call", "fix.echo", "txt=a"], 2);
    assert!(
        err(&closed).contains("`text` is missing") && err(&closed).contains("it takes `text` (required)")
    );
    assert_eq!(crib.status()["servers"][0]["calls"], json!(0), "nothing was sent");
    let sent = both(&crib, &["call", "fix.loose", "text=a", "typo=1", "--no-check"], 0);
    assert_eq!(serde_json::from_str::<Value>(&out(&sent)).unwrap(), json!({"text": "a", "typo": "1"}));
}

#[test]
fn repeated_arguments_are_lists_and_json_gets_a_hint() {
    let crib = Crib::new(LOOSE);
    crib.ok(&["up", "-d"]);
    for (arguments, answer) in [
        (&["tags=1", "tags=2"][..], json!({"tags": [1, 2]})),
        (&["tags=1", "text=a"], json!({"tags": [1], "text": "a"})),
        (&["tags=[1, 2]"], json!({"tags": [1, 2]})),
    ] {
        let output = both(&crib, &[&["call", "fix.loose"], arguments].concat(), 0);
        assert_eq!(serde_json::from_str::<Value>(&out(&output)).unwrap(), answer);
    }
    let twice = both(&crib, &["call", "fix.loose", "text=a", "text=b"], 2);
    assert!(err(&twice).contains("`text` is given 2 times, and the schema of `fix.loose` wants one value"));
    let json = both(&crib, &["call", "fix.loose", "{\"text\": \"a=b\"}"], 2);
    assert!(err(&json).contains("is JSON") && err(&json).contains("--args '{"), "{}", err(&json));
    let given = both(&crib, &["call", "fix.loose", "--args", "{\"text\": \"a=b\"}"], 0);
    assert_eq!(out(&given).trim(), "{\"text\":\"a=b\"}");
}

#[test]
fn a_unique_tool_name_needs_no_server() {
    let crib = Crib::new(&format!(
        "{LOOSE}[servers.other]\ncommand = FIXTURE\n[servers.dead]\ncommand = \"none-such\"\n"
    ));
    crib.ok(&["up", "-d"]);
    let found = crib.run(&["call", "loose", "text=a"]);
    assert_eq!((code(&found), out(&found).trim()), (0, "{\"text\":\"a\"}"), "{}", err(&found));
    let alone = crib.run(&["call", "loose", "text=a", "--no-daemon"]);
    assert_eq!((code(&alone), out(&alone).trim()), (0, "{\"text\":\"a\"}"), "{}", err(&alone));
    for daemon in [&[][..], &["--no-daemon"]] {
        let several = crib.run(&[&["call", "echo", "text=a"], daemon].concat());
        assert_eq!(code(&several), 6, "{}", err(&several));
        assert!(err(&several).contains("2 servers have a tool `echo`"), "{}", err(&several));
        assert!(err(&several).contains("say which: fix.echo, other.echo"), "{}", err(&several));
        let none = crib.run(&[&["call", "looose"], daemon].concat());
        assert_eq!(code(&none), 6, "{}", err(&none));
        assert!(err(&none).contains("did you mean `fix.loose`?"), "{}", err(&none));
        let server = crib.run(&[&["call", "fix"], daemon].concat());
        assert!(err(&server).contains("`fix` is a server, and its tool is missing"), "{}", err(&server));
    }
}

#[test]
fn a_variable_missing_in_the_daemon_is_reported() {
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
    // The help of the message works.
    crib.ok(&["down"]);
    let up = crib.command(&["up", "-d"]).env("LATE_KEY", "set-in-this-shell").output().unwrap();
    assert_eq!(code(&up), 0, "{}", err(&up));
    assert!(crib.ok(&["call", "late.env"]).contains("GIVEN"));
}

#[test]
fn logs_show_the_last_lines_and_follow() {
    let script = "for i in 1 2 3 4 5 6 7 8; do echo line-$i >&2; done; exec \\\"$@\\\"";
    let crib = Crib::new(&format!(
        "[servers.fix]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{script}\", \"sh\", FIXTURE]\n"
    ));
    crib.ok(&["up", "-d"]);
    let words = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().next_back().unwrap().to_owned()).collect()
    };
    let logs = |more: &[&str]| words(&crib.ok(&[&["logs", "--stream", "stderr"], more].concat()));
    assert_eq!(logs(&["-n", "2"]), ["line-7", "line-8"]);
    assert_eq!(logs(&["-n", "1", "--grep", "line-[1-5]"]), ["line-5"]);
    assert_eq!((logs(&["-n", "0"]).len(), logs(&["-n", "99"]).len(), logs(&[]).len()), (0, 8, 8));
    let mut follower = crib.spawn(&["logs", "--stream", "stderr", "-f", "-n", "2"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = |count: usize| words(&lines.by_ref().take(count).collect::<Vec<_>>().join("\n"));
    assert_eq!(next(2), ["line-7", "line-8"]);
    crib.ok(&["restart", "fix"]);
    assert_eq!(next(3), ["line-1", "line-2", "line-3"]);
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Output of npm 11 for a package that does not exist.
const NPM: &str = "npm error code E404\n\
    npm error 404 Not Found - GET https://registry.npmjs.org/@scope%2fserver-zzz\n\
    npm error 404\n\
    npm error 404  The requested resource '@scope/server-zzz@*' could not be found or you do not have permission.\n\
    npm error 404\n\
    npm error 404 Note that you can also install from a\n\
    npm error 404 tarball, folder, http url, or git url.\n\
    npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug-0.log\n";

#[test]
fn a_failed_start_shows_the_relevant_line_and_advice() {
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
fn a_bare_program_name_without_path_is_explained() {
    let bench = Bench::new("[defaults]\ninherit_env = []\n[servers.x]\ncommand = \"npx\"\n");
    let output = bench.run(&["check"]);
    assert!(err(&output).contains("the environment of the server has no PATH"), "{}", err(&output));
    assert!(!err(&output).contains("install Node.js"), "{}", err(&output));
}

#[test]
fn a_narrow_terminal_shows_why_a_server_is_down() {
    let crib = Crib::new(
        "[servers.broken]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"echo the disk is full >&2; exit 1\"]\n",
    );
    crib.run(&["up", "-d"]);
    let ps = crib.command(&["ps"]);
    let words = std::iter::once(ps.get_program()).chain(ps.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let line = format!("stty cols 80 rows 24; exec {}", words.join(" "));
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null());
    terminal.envs(ps.get_envs().filter_map(|(name, value)| Some((name, value?))));
    terminal.current_dir(ps.get_current_dir().unwrap_or(crib.folder()));
    let told = out(&terminal.output().unwrap());
    let row = told.lines().find(|line| line.starts_with("broken ")).unwrap_or_else(|| panic!("{told}"));
    assert!(row.contains("the disk is full") && row.trim_end().chars().count() <= 80, "{told}");
    assert!(!told.contains("P95"), "{told}");
}
