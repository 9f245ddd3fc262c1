//! First attempts of new users: files of other programs where a servers.toml is expected, names of commands of other programs,
//! commands without arguments that can be found out.

use std::{
    fs::File,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::support::program::{Bench, code, err, out};

const CLOCK: &str = "[servers.time]\nbuiltin = \"time\"\n";

fn with_stdout(mut command: Command, stdout: impl Into<Stdio>) -> (i32, String) {
    let output = command.stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    (code(&output), err(&output))
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let bench = Bench::new(CLOCK);
    bench.file(".mcp.json", r#"{"mcpServers": {"a": {"command": "x"}}}"#);
    assert_eq!(code(&bench.run(&["demo"])), 0);
    let commands: [&[&str]; 16] = [
        &["tools"],
        &["tools", "--json"],
        &["call", "time.now"],
        &["call", "time.now", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["runs"],
        &["runs", "show"],
        &["--json", "check"],
        &["--json", "up"],
        &["import", ".mcp.json"],
        &["install"],
        &["export", "csv", "-o", "-"],
        &["export", "perfetto", "-o", "-"],
        &["run", "--help"],
        &["--version"],
    ];
    for arguments in commands {
        let (code, said) = with_stdout(bench.command(arguments), File::create("/dev/full").unwrap());
        assert_eq!(code, 1, "{arguments:?}: {said}");
        let is_told =
            said.contains("cannot write the output to stdout") && said.contains("No space left on device");
        assert!(is_told && !said.contains("panicked"), "{arguments:?}: {said}");
        // A pipe that nobody reads ends a program quietly.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, said) = with_stdout(bench.command(arguments), writer);
        assert_eq!(code, 141, "{arguments:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error"), "{arguments:?}: {said}");
    }
    // Events of a run, and a stderr that takes nothing.
    let run = ["run", "tasks.jsonl", "--events", "-"];
    bench.file("tasks.jsonl", r#"{"calls": [{"tool": "time.now"}]}"#);
    let (code, said) = with_stdout(bench.command(&run), File::create("/dev/full").unwrap());
    assert!(code == 1 && said.contains("not all events were written"), "{code}: {said}");
    let status =
        bench.command(&["tools"]).stderr(File::create("/dev/full").unwrap()).stdout(Stdio::null()).status();
    assert!(status.unwrap().success());
}

#[test]
fn files_of_other_programs_lead_to_import() {
    let bench = Bench::new(CLOCK);
    let folder = bench.0.path();
    bench.file("mcp.json", "{\n  \"mcpServers\": {}\n}");
    bench.file("servers.yaml", "servers:\n  a: 1\n");
    std::fs::create_dir_all(folder.join("other/sub")).unwrap();
    std::fs::create_dir_all(folder.join("empty")).unwrap();
    bench.file("other/.mcp.json", "{}");
    for (file, words, help) in [
        ("mcp.json", "mcp.json: is no servers.toml", "`toolcrib import mcp.json > servers.toml`"),
        ("servers.yaml", "servers.yaml: is no servers.toml", "`import = [\"servers.yaml\"]`"),
        (
            "other",
            "other: is a folder without a servers.toml",
            "`toolcrib import other/.mcp.json > servers.toml`",
        ),
        ("empty", "empty: is a folder without a servers.toml", "name the file itself"),
    ] {
        let output = bench.run(&["-c", file, "check"]);
        let said = err(&output);
        assert!(code(&output) == 3 && said.contains(words) && said.contains(help), "{said}");
    }
    assert_eq!(code(&bench.run(&["-c", ".", "tools"])), 0, "the servers.toml of a folder");
    let within = |folder: &str| {
        let mut command = bench.command(&["check"]);
        command
            .current_dir(bench.0.path().join(folder))
            .env("XDG_CONFIG_HOME", "/nowhere")
            .env_remove("HOME");
        err(&command.output().unwrap())
    };
    let said = within("other");
    assert!(said.contains("`toolcrib import .mcp.json > servers.toml`"), "{said}");
    let said = within("other/sub");
    assert!(said.contains("servers.toml: name it with `--config`"), "{said}");
}

#[test]
fn an_import_of_nothing_names_the_command() {
    let bench = Bench::new(CLOCK);
    let said = err(&bench.run(&["import"]));
    assert!(said.contains("none is named") && said.contains("toolcrib import claude-desktop"), "{said}");
    bench.file(".mcp.json", "{}");
    let output = bench.run(&["import"]);
    let said = err(&output);
    assert!(code(&output) == 2 && said.contains("toolcrib import .mcp.json > servers.toml"), "{said}");
}

#[test]
fn calls_and_questions_are_understood_or_led_on() {
    let bench = Bench::new("[servers.calc]\nbuiltin = \"calc\"\n");
    let call = bench.run(&["call", "calc__evaluate", "expression=1+2"]);
    assert_eq!((code(&call), out(&call).trim()), (0, "3"), "{}", err(&call));
    let apart = bench.run(&["call", "calc", "evaluate", "expression=1"]);
    let said = err(&apart);
    assert!(code(&apart) == 2 && said.contains("did you mean `toolcrib call calc.evaluate`?"), "{said}");
    let split = bench.run(&["run", "What", "is", "2"]);
    let said = err(&split);
    assert!(code(&split) == 2 && said.contains("in quotes: toolcrib run \"What is 2\""), "{said}");
    let help = out(&bench.run(&["run", "--help"]));
    assert!(help.contains("run [OPTIONS] <TASKS>\n"), "{help}");
}

#[test]
fn a_taken_port_names_the_option() {
    let bench = Bench::new(CLOCK);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, option) in [
        (&["serve", "--http", &port][..], "another address with --http PORT|ADDRESS"),
        (&["view", ".", "--port", &port], "another address with --port N"),
        (&["run", "Hm?", "--metrics", &port], "another address with --metrics PORT|ADDRESS"),
    ] {
        let output = bench.run(arguments);
        let said = err(&output);
        assert!(code(&output) == 1 && said.contains(option), "{arguments:?}: {said}");
    }
}

#[test]
fn a_check_with_nothing_ready_exits_4() {
    let bench = Bench::new("[servers.a]\ncommand = \"/nowhere/a\"\n");
    assert_eq!(code(&bench.run(&["check"])), 4);
    let bench = Bench::new(&format!("[servers.a]\ncommand = \"/nowhere/a\"\n{CLOCK}"));
    assert_eq!(code(&bench.run(&["check"])), 0, "one is ready");
    let bench = Bench::new("[servers.a]\ncommand = \"x\"\ntype = \"stdio\"\n");
    let said = err(&bench.run(&["check"]));
    assert!(
        said.contains("unknown key") && said.contains("leave it out: `command`, `url` or `builtin`"),
        "{said}"
    );
}

#[test]
fn words_of_other_programs_lead_to_the_command() {
    let bench = Bench::new(CLOCK);
    assert_eq!(out(&bench.run(&["list"])), out(&bench.run(&["tools"])));
    assert_eq!(code(&bench.run(&["status"])), code(&bench.run(&["ps"])));
    for (word, tip) in [
        ("validate", "`toolcrib check`"),
        ("inspect", "`toolcrib tools --schema`"),
        ("new", "`toolcrib import .mcp.json > servers.toml`"),
        ("torture", "`toolcrib-lab`"),
        ("resume", "run the command that began a run again"),
        ("monitor", "`toolcrib top`"),
    ] {
        let output = bench.run(&[word]);
        let said = err(&output);
        assert!(code(&output) == 2 && said.contains(tip), "{said}");
        assert!(!said.contains("similar subcommand"), "{said}");
    }
    let said = err(&bench.run(&["up", "--port", "1"]));
    assert!(said.contains("`serve` has --http PORT|ADDRESS"), "{said}");
    let said = err(&bench.run(&["run", "x.jsonl", "--resume"]));
    assert!(said.contains("the same command without it continues") && !said.contains("similar"), "{said}");
    let said = err(&bench.run(&["serve", "--port", "x"]));
    assert!(said.contains("is not an address with a port"), "{said}");
}

#[test]
fn commands_take_the_latest_run_where_none_is_named() {
    let bench = Bench::new("");
    let view = bench.run(&["view", "nosuchfolder"]);
    assert!(code(&view) == 2 && err(&view).contains("there is no folder nosuchfolder"), "{}", err(&view));
    let run = |arguments: &[&str]| {
        let output = bench.run(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
        out(&output)
    };
    run(&["demo"]);
    let none = bench.run(&["diff"]);
    assert!(code(&none) == 2 && err(&none).contains("no run of the same tasks before"), "{}", err(&none));
    run(&["demo"]);
    let runs: Value = serde_json::from_str(&run(&["--json", "runs"])).unwrap();
    let [second, first] = [0, 1].map(|at| runs["runs"][at]["run"].as_str().unwrap().to_owned());
    assert_eq!(run(&["runs", &first]), run(&["runs", "show", &first]));
    assert_eq!(run(&["diff"]), run(&["diff", &first, &second]));
    assert_eq!(run(&["diff", &first]), run(&["diff", &first, &second]));
    let csv = run(&["export", "--format", "csv", "-o", "-"]);
    for arguments in [&["export", "csv"][..], &["export", "csv", &second], &["export", &second, "csv"]] {
        assert_eq!(run(&[arguments, &["-o", "-"]].concat()), csv);
    }
    let missing = bench.run(&["export"]);
    assert!(
        code(&missing) == 2 && err(&missing).contains("toolcrib export FORMAT [RUN]"),
        "{}",
        err(&missing)
    );
}

#[test]
fn a_table_of_a_spreadsheet_is_run() {
    let bench = Bench::new(CLOCK);
    let wide: Vec<u8> =
        "\u{feff}Question,Answer\r\n2+2?,4\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    std::fs::write(bench.0.path().join("wide.csv"), wide).unwrap();
    bench.file("semi.csv", "sep=;\r\nPrompt ;Target;\r\n2+2?;4;\r\n;;\r\n");
    bench.file("list.jsonl", "[{\"query\": \"2+2?\",\n \"answer\": 4}]");
    std::fs::write(bench.0.path().join("latin.csv"), b"input,target\nK\xf6ln?,4\n").unwrap();
    let run = |file: &str| {
        bench.run(&[
            "run",
            file,
            "--fresh",
            "--base-url",
            "http://127.0.0.1:1/v1",
            "--model",
            "m",
            "--limit",
            "9..9",
        ])
    };
    for (file, reading) in [
        ("wide.csv", "Question -> input, Answer -> target"),
        ("semi.csv", "Prompt -> input, Target -> target"),
        ("list.jsonl", "query -> input, answer -> target"),
    ] {
        let said = err(&run(file));
        assert!(said.contains(reading), "{file}: {said}");
    }
    let said = err(&run("latin.csv"));
    assert!(said.contains("line 2 has the byte 0xF6; it seems to be Latin-1"), "{said}");
}

#[test]
fn the_options_of_a_command_come_before_the_global_ones() {
    let bench = Bench::new("");
    let help = out(&bench.run(&["run", "--help"]));
    let place = |words: &str| help.find(words).unwrap_or_else(|| panic!("{words}: {help}"));
    let headings = ["\nOptions:", "\nModel:", "\nTasks:", "\nOutput:", "\nGlobal options:"].map(place);
    assert!(headings.is_sorted(), "{help}");
    assert!(place("--config <FILE>") > headings[4] && place("--filter <CONDITIONS>") < headings[4], "{help}");
}

#[test]
fn a_measurement_says_which_files_it_wrote() {
    let bench = Bench::new(CLOCK);
    let output = bench.run(&["bench", "init", "--runs", "1", "--no-baseline", "--html", "start.html"]);
    assert!(code(&output) == 0 && err(&output).contains("Wrote start.html"), "{}", err(&output));
    assert!(out(&output).contains("1 server, 1 run each"), "{}", out(&output));
}
