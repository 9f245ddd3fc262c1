//! `toolcrib torture`: it finds survivors where there are some, clears them away, and finds none of its own.

use serde_json::Value;

use crate::program::{Bench, code, err, out};

fn score(arguments: &[&str]) -> (i32, Value, String) {
    let output = Bench::new("").run(&[&["--json", "torture", "--wait", "20s"], arguments].concat());
    let document =
        serde_json::from_str(&out(&output)).unwrap_or_else(|error| panic!("{error}: {}", err(&output)));
    (code(&output), document, err(&output))
}

/// Processes of any cell: their command lines name the hidden commands.
fn tortured() -> Vec<String> {
    let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains("torture-server session-hopper").then_some(line)
    });
    lines.collect()
}

#[test]
fn nobody_survives_the_worst_ends() {
    let (code, score, errors) = score(&[
        "--servers",
        "helper-holds-stdout,daemon,fork-storm,everything",
        "--ends",
        "drop,runtime-first,abort,sigterm,sigkill",
    ]);
    assert_eq!(
        (code, &score["survivors"], &score["owner_failed"]),
        (0, &0.into(), &0.into()),
        "{score} {errors}"
    );
    assert_eq!(score["cells"].as_array().unwrap().len(), 20);
}

#[test]
fn whom_a_process_group_leaves_behind_is_counted_and_cleared_away() {
    let arguments =
        ["--no-guard", "--servers", "setsid-helper,session-hopper", "--ends", "sigkill", "--wait", "300ms"];
    let output = Bench::new("").run(&[&["--json", "torture"], &arguments[..]].concat());
    let score: Value = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!(code(&output), 9, "{score}");
    for cell in score["cells"].as_array().unwrap() {
        assert_eq!(cell["survivors_worst"], 1, "{cell}");
    }
    assert_eq!(tortured(), [""; 0]);
}

#[test]
fn another_program_is_scored_by_the_same_measure() {
    // A peer that starts its server, asks it for a tool, and forgets about it.
    let peer = Bench::new("");
    peer.file(
        "peer.sh",
        "mkfifo in out\n\"$@\" <in >out 2>/dev/null &\nexec 3>in 4<out\n\
         echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\"}}' >&3\n\
         read -r answer <&4\necho ready\nexit 0\n",
    );
    let run = |server: &str| {
        let command =
            ["torture", "--json", "--ends", "return", "--servers", server, "--wait", "1s", "--command"];
        let output = peer.run(&[&command[..], &["sh peer.sh {server}"]].concat());
        std::fs::remove_file(peer.0.path().join("in")).unwrap();
        std::fs::remove_file(peer.0.path().join("out")).unwrap();
        let score: Value = serde_json::from_str(&out(&output)).unwrap();
        (code(&output), score["survivors"].as_u64().unwrap(), score["program"].clone(), err(&output))
    };
    let (polite, survivors, program, errors) = run("polite");
    assert_eq!((polite, survivors), (0, 0), "{errors}");
    assert_eq!(program, "sh peer.sh {server}");
    assert_eq!(run("ignores-eof").0, 9);
    assert_eq!(run("daemon").1, 1);
}

#[test]
fn an_owner_that_never_gets_so_far_is_no_success() {
    let (code, score, errors) = score(&["--command", "false", "--servers", "polite", "--ends", "return"]);
    assert_eq!((code, &score["owner_failed"]), (1, &1.into()), "{score} {errors}");
}
