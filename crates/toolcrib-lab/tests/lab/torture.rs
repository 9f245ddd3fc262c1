//! Tests `toolcrib-lab torture`: it finds and kills survivors where there are some, and toolcrib leaves none.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::{Bench, code, err, out, wait_for};

/// A peer that starts its server, calls its tool, and forgets about it.
const PEER: &str = "mkfifo in out\n\"$@\" <in >out 2>/dev/null &\nexec 3>in 4<out\n\
    echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{\"name\":\"echo\"}}' >&3\n\
    read -r answer <&4\nrm in out\necho ready\nexit 0\n";

/// A torture whose scratch files are in a folder of its own, which its processes name in their command lines.
fn torture(bench: &Bench, arguments: &[&str]) -> Command {
    let mut command = bench.command(&[&["--json", "torture"], arguments].concat());
    command.env("TMPDIR", bench.0.path());
    command
}

/// Exit code, document and stderr of one torture, which must leave no process in any case.
fn score(arguments: &[&str]) -> (i32, Value, String) {
    let bench = Bench::new("");
    bench.file("peer.sh", PEER);
    let output = torture(&bench, arguments).output().unwrap();
    assert_eq!(left(bench.0.path()), [""; 0]);
    let document = serde_json::from_str(&out(&output)).unwrap_or_else(|_| panic!("{}", err(&output)));
    (code(&output), document, err(&output))
}

/// Command lines of processes and names of files that a torture in `folder` left behind.
fn left(folder: &Path) -> Vec<String> {
    let place = folder.join("toolcrib-torture-").display().to_string();
    let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|process| {
        let line = std::fs::read(process.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(&place).then_some(line)
    });
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|file| file.path().display().to_string());
    lines.chain(files.filter(|file| file.starts_with(&place))).collect()
}

#[toolcrib_testing::requires(guard)]
#[test]
fn no_process_survives_any_ending() {
    let servers = "helper-holds-stdout,daemon,fork-storm,session-hopper,everything,deaf-helper";
    let (code, score, errors) =
        score(&["--servers", servers, "--ends", "drop,runtime-first,abort,sig*", "--wait", "20s"]);
    assert_eq!(
        (code, &score["survivors"], &score["owner_failed"]),
        (0, &0.into(), &0.into()),
        "{score} {errors}"
    );
    assert_eq!((score["runs"].as_u64(), score["cells"].as_array().unwrap().len()), (Some(36), 36));
}

/// A trial counts only if its server was forked, or is not because its template hangs: then the owner says so.
#[toolcrib_testing::requires(guard, python3_venv)]
#[test]
fn no_fork_of_a_template_survives_any_ending() {
    let (code, score, errors) =
        score(&["--servers", "forked-*,template-*", "--ends", "drop,abort,sigkill", "--wait", "20s"]);
    assert_eq!(
        (code, &score["survivors"], &score["owner_failed"]),
        (0, &0.into(), &0.into()),
        "{score} {errors}"
    );
    assert_eq!((score["runs"].as_u64(), score["cells"].as_array().unwrap().len()), (Some(39), 39));
}

#[test]
fn servers_are_forked_by_toolcrib_with_guards_alone() {
    let forked = ["--servers", "forked-daemon,polite", "--ends", "drop"];
    for (more, words) in [
        (&["--no-guard"][..], "only where there are guards"),
        (&["--command", "sh peer.sh {server}"], "only toolcrib forks servers"),
    ] {
        let alone = [&["torture"], &forked[..1], &["forked-daemon"], more].concat();
        let output = Bench::new("").command(&alone).output().unwrap();
        assert_eq!(code(&output), 2);
        assert!(err(&output).contains("`forked-daemon` cannot be run") && err(&output).contains(words));
    }
    let (code, score, errors) = score(&[&forked[..], &["--no-guard"]].concat());
    assert_eq!((code, &score["servers"]), (0, &serde_json::json!(["polite"])), "{errors}");
}

#[test]
fn survivors_of_a_process_group_are_counted_and_ended() {
    let servers = "setsid-helper,fork-storm,session-hopper,everything";
    let (code, score, errors) =
        score(&["--no-guard", "--servers", servers, "--ends", "sigkill", "--wait", "300ms", "--repeat", "2"]);
    assert_eq!(code, 9, "{score} {errors}");
    let cells = score["cells"].as_array().unwrap();
    let worst = |server: &str| {
        let cell = cells.iter().find(|cell| cell["server"] == server).unwrap();
        assert_eq!(
            (&cell["end"], &cell["runs"], cell["trials"].as_array().unwrap().len()),
            (&"sigkill".into(), &2.into(), 2)
        );
        // One that hops is known by its beats, and may have no process at the moment of a look.
        let named = cell["trials"][0]["processes"][0]["command"].as_str();
        assert!(named.is_some_and(|line| !line.is_empty()) || server == "session-hopper", "{cell}");
        cell["survivors_worst"].as_u64().unwrap()
    };
    assert_eq!((worst("setsid-helper"), worst("everything")), (1, 4), "{score}");
    // The loop and its sleepers; the one that hops may be seen in the middle of it.
    assert_eq!(worst("fork-storm"), 401);
    assert!((1..=2).contains(&worst("session-hopper")), "{score}");
}

#[test]
fn another_program_is_scored_in_the_same_way() {
    let run = |server: &str| {
        let (code, score, errors) = score(&[
            "--ends",
            "return",
            "--servers",
            server,
            "--wait",
            "1s",
            "--command",
            "sh peer.sh {server}",
        ]);
        assert_eq!((&score["program"], &score["owner_failed"]), (&"sh peer.sh {server}".into(), &0.into()));
        (code, score["survivors"].as_u64().unwrap(), errors)
    };
    assert_eq!(run("polite"), (0, 0, String::new()));
    assert_eq!(run("ignores-eof").1, 1);
    assert_eq!(run("everything"), (9, 4, String::new()));
    // With a text for a shell, and a session of its own for the server.
    let planted = "sh -c 'setsid nohup sh peer.sh {server} && : {end}'";
    let (code, score, errors) =
        score(&["--command", planted, "--ends", "return", "--servers", "daemon", "--wait", "1s"]);
    assert_eq!((code, &score["survivors"]), (9, &1.into()), "{score} {errors}");
}

#[test]
fn an_owner_that_never_starts_its_servers_fails() {
    let cases = [
        ("false {server}", "exited with code 1 before it said `ready`"),
        ("sh -c 'echo no such server >&2; exit 3' {server}", "code 3 before it said `ready`: no such server"),
        ("sh -c 'echo ready; exit 0' {server}", "its server was never called"),
        ("no-such-program {server}", "`no-such-program` could not be started"),
    ];
    for (command, why) in cases {
        let (code, score, errors) = score(&["--command", command, "--servers", "polite", "--ends", "return"]);
        assert_eq!((code, &score["owner_failed"]), (1, &1.into()), "{score} {errors}");
        let error = score["cells"][0]["trials"][0]["error"].as_str().unwrap();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn an_unusable_torture_target_is_reported_at_once() {
    let cases: [(&[&str], &str); 4] = [
        (&["--servers", "fork-strom"], "did you mean `fork-storm`?"),
        (&["--ends", "explode"], "there are: drop, cancel"),
        (&["--command", "my-host"], "put {server} or {server_json}"),
        (&["--command", "my-host '{server}"], "ends within quotes"),
    ];
    for (arguments, words) in cases {
        let output = Bench::new("").command(&[&["torture"], arguments].concat()).output().unwrap();
        assert_eq!(code(&output), 2);
        assert!(err(&output).contains(words), "{}", err(&output));
    }
}

#[test]
fn torture_prints_a_table_on_a_terminal() {
    let arguments =
        ["torture", "--no-guard", "--servers", "polite,daemon", "--ends", "drop,sigkill", "--wait", "300ms"];
    let output = Bench::new("").command(&arguments).output().unwrap();
    assert_eq!(
        out(&output),
        "        drop  KILL\npolite     .     .\ndaemon     1     1\n",
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("4 trials: 2 survivors in 2, slowest"), "{}", err(&output));
}

/// One signal lets the trials end their own; two are for the impatient, and leave nothing either.
#[test]
fn an_interrupted_torture_ends_its_processes() {
    for signals in [1, 2] {
        let bench = Bench::new("");
        let arguments =
            ["--no-guard", "--servers", "fork-storm,session-hopper", "--ends", "sigkill", "--wait", "10m"];
        let mut child =
            torture(&bench, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("a storm", || left(bench.0.path()).iter().any(|line| line.contains("--part storm")));
        let pid = child.id().to_string();
        for _ in 0..signals {
            assert!(Command::new("kill").args(["-s", "INT", &pid]).status().unwrap().success());
        }
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(left(bench.0.path()), [""; 0]);
    }
}
