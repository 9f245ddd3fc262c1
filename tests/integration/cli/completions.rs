//! `toolcrib completions`: the questions that the scripts of shells ask, and the scripts in real shells at a terminal.

use std::{
    fs,
    io::{Read, Write},
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    program::{Bench, code, err, kept_in, out},
    signal,
};

const CONFIG: &str = "[servers.calc]\nbuiltin = \"calc\"\n[servers.time]\nbuiltin = \"time\"\n\
                      [profile.quick]\nservers = [\"calc\"]\n";

/// The candidates for the last word of a line, as the script of zsh gets them; without options, unless one is begun.
fn asked(bench: &Bench, line: &[&str]) -> Vec<String> {
    let output = out(&answer(bench, "zsh", line));
    let words = output.lines().map(|line| line.split('\t').next().unwrap());
    let begun = line.last().unwrap().starts_with('-');
    words.filter(|word| begun || !word.starts_with('-')).map(str::to_owned).collect()
}

fn answer(bench: &Bench, shell: &str, line: &[&str]) -> Output {
    let mut words = vec!["--", "toolcrib"];
    words.extend(line);
    let output = bench.command(&words).env("TOOLCRIB_COMPLETE", shell).output().unwrap();
    assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{line:?}");
    output
}

/// A bench whose tool lists are known.
fn listed() -> Bench {
    let bench = Bench::new(CONFIG);
    let output = bench.run(&["tools"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    bench
}

#[test]
fn candidates_come_from_the_configuration_and_known_lists() {
    let bench = listed();
    assert_eq!(asked(&bench, &["call", "ca"]), ["calc.evaluate"]);
    assert_eq!(asked(&bench, &["call", "calc.evaluate", ""]), ["expression="]);
    assert_eq!(asked(&bench, &["call", "calc.evaluate", "expression=1", ""]), Vec::<String>::new());
    assert_eq!(asked(&bench, &["tools", ""]), ["calc", "time"]);
    assert_eq!(asked(&bench, &["--profile", "quick", "tools", ""]), ["calc"]);
    assert_eq!(asked(&bench, &["--profile", ""]), ["quick"]);
    assert_eq!(asked(&bench, &["tools", "--profile=q"]), ["--profile=quick"]);
    assert_eq!(asked(&bench, &["builtin", "f"]), ["files", "fetch"]);
    assert_eq!(asked(&bench, &["trust", "--re"]), ["--remove"]);
    assert_eq!(asked(&bench, &["completio"]), ["completions"]);
    assert_eq!(asked(&bench, &["completions", "z"]), ["zsh"]);
    assert!(asked(&bench, &["install", "claude"]).contains(&"claude-code".to_owned()));
    assert!(asked(&bench, &["export", "in"]).contains(&"inspect".to_owned()));
    assert_eq!(asked(&bench, &["run", "--out", "ca"]), ["cache/"]);
    // bash takes words apart, and keeps what is before the cursor.
    let words =
        |line: &[&str]| out(&answer(&bench, "bash", line)).lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&["--profile", "=", "qu"]), ["quick"]);
    assert_eq!(words(&["--profile", "="]), ["quick"]);
    assert_eq!(words(&["call", "calc.evaluate", "ex"]), ["expression="]);
}

#[test]
fn runs_are_offered_the_latest_first() {
    let bench = Bench::new(CONFIG);
    assert_eq!(code(&bench.run(&["demo"])), 0);
    let name = fs::read_dir(bench.0.path().join("runs")).unwrap().next().unwrap().unwrap().file_name();
    let name = name.to_str().unwrap();
    for (number, day) in [("old", 100), ("new", 0)] {
        let folder = bench.0.path().join("more").join(number);
        fs::create_dir_all(&folder).unwrap();
        let file = fs::File::create(folder.join("run.json")).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(day)).unwrap();
    }
    for command in ["report", "export", "diff", "runs"] {
        assert!(asked(&bench, &[command, ""]).contains(&name.to_owned()), "{command}");
    }
    assert_eq!(asked(&bench, &["report", "--out", "more", ""]), ["new", "old"]);
    let told = out(&answer(&bench, "zsh", &["runs", "show", ""]));
    assert!(told.contains("finished"), "{told}");
}

#[test]
fn hostile_files_cost_nothing_but_an_empty_completion() {
    let bench = listed();
    let folder = bench.0.path();
    let list = fs::read_dir(folder.join("cache/toolcrib/catalog")).unwrap();
    let list =
        list.map(|file| file.unwrap().path()).find(|file| file.to_str().unwrap().contains("calc")).unwrap();
    let whole = fs::read_to_string(&list).unwrap();
    // Names and meanings of a server that does not mean well.
    let mut told: serde_json::Value = serde_json::from_str(&whole).unwrap();
    let properties =
        json!({"ok": {"description": "a\u{1b}[2Jb\tc\nd"}, "$(touch x)": {}, "b\nc": {}, "d e": {}});
    told["tools"][0]["input_schema"] = json!({"type": "object", "properties": properties, "required": 7});
    fs::write(&list, told.to_string()).unwrap();
    let answered = out(&answer(&bench, "zsh", &["call", "calc.evaluate", ""]));
    assert_eq!(answered, "ok=\ta\\u{1b}[2Jb c\n");
    told["tools"][0]["input_schema"]["properties"] = json!([["no table"]]);
    for broken in [told.to_string().as_str(), "", "[", &whole[..whole.len() / 2], "\u{0}"] {
        fs::write(&list, broken).unwrap();
        assert_eq!(asked(&bench, &["call", "calc.evaluate", ""]), Vec::<String>::new(), "{broken}");
    }
    // A pipe without a writer in place of the list, and of the configuration.
    fs::remove_file(&list).unwrap();
    assert!(Command::new("mkfifo").arg(&list).arg(folder.join("pipe.toml")).status().unwrap().success());
    let began = Instant::now();
    assert_eq!(asked(&bench, &["call", "calc."]), Vec::<String>::new());
    assert_eq!(asked(&bench, &["--config", "pipe.toml", "tools", ""]), Vec::<String>::new());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let large = format!("{CONFIG}{}", "# comment\n".repeat(200_000));
    for broken in ["[servers", "servers = 1", "\u{0}", &"[".repeat(100_000), &large] {
        bench.file("servers.toml", broken);
        assert_eq!(asked(&bench, &["tools", ""]), Vec::<String>::new());
    }
}

#[test]
fn a_stray_variable_changes_no_command() {
    let bench = Bench::new(CONFIG);
    let output = bench.command(&["--version"]).env("TOOLCRIB_COMPLETE", "bash").output().unwrap();
    assert!(out(&output).starts_with("toolcrib "), "{}", out(&output));
    let output =
        bench.command(&["--", "toolcrib", ""]).env("TOOLCRIB_COMPLETE", "no-shell").output().unwrap();
    assert_eq!((code(&output), out(&output).as_str(), err(&output).as_str()), (0, "", ""));
}

/// Types a line into a shell at a terminal, presses the Tab key, and gives what the shell then has in its line.
///
/// The shell is asked to print its line by Ctrl-X P, which its setup binds.
fn typed(shell: &[&str], setup: &str, bench: &Bench, line: &str) -> String {
    let folder = bench.0.path();
    // The program is found by its name, as users have it.
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).unwrap();
    let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_toolcrib"), programs.join("toolcrib"));
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    bench.file("setup", setup);
    let quoted = shell.join(" ");
    let mut command = Command::new("timeout");
    command.args(["60", "script", "-qec", &format!("stty cols 200; {quoted}"), "/dev/null"]);
    kept_in(folder, &mut command)
        .env("PATH", path)
        .env("HOME", folder)
        .env("ZDOTDIR", folder)
        .env("TERM", "dumb");
    command.env("XDG_CONFIG_HOME", folder.join("config")).env("XDG_DATA_HOME", folder.join("data"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (send, shown) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = screen.read(&mut bytes) {
            let _ = send.send(bytes[..length].to_vec());
        }
    });
    let mut seen = String::new();
    let mut until = |mark: &str, from: usize| {
        let end = Instant::now() + Duration::from_secs(30);
        while !seen.get(from..).is_some_and(|text| text.contains(mark)) {
            let left = end.saturating_duration_since(Instant::now());
            let bytes = shown.recv_timeout(left).unwrap_or_else(|_| panic!("no {mark:?} in {seen:?}"));
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
        seen.clone()
    };
    until("READY", 0);
    keys.write_all(format!("{line}\t").as_bytes()).unwrap();
    // The answer to the Tab key comes before that to the next key.
    keys.write_all(b"\x18p").unwrap();
    let seen = until(">>>", 0);
    drop(keys);
    // It passes the signal on to script, and the end of script is the end of the terminal.
    signal("TERM", child.id());
    let _ = child.wait();
    reader.join().unwrap();
    let line = seen.split("<<<").last().unwrap();
    line.split(">>>").next().unwrap().to_owned()
}

/// Lines, and what the Tab key makes of them.
const TYPED: [(&str, &str); 7] = [
    ("toolcrib che", "toolcrib check "),
    ("toolcrib call ca", "toolcrib call calc.evaluate "),
    ("toolcrib call calc.evaluate ex", "toolcrib call calc.evaluate expression="),
    ("toolcrib --profile qu", "toolcrib --profile quick "),
    ("toolcrib tools --profile=qu", "toolcrib tools --profile=quick "),
    ("toolcrib -c oth", "toolcrib -c other.toml "),
    ("toolcrib -c other.toml stop cl", "toolcrib -c other.toml stop clock "),
];

fn in_shell(shell: &[&str], setup: &str) {
    let bench = listed();
    bench.file("other.toml", "[servers.clock]\nbuiltin = \"time\"\n");
    for (line, completed) in TYPED {
        assert_eq!(typed(shell, setup, &bench, line), completed, "{line}");
    }
}

#[toolcrib_testing::requires(bash, terminal)]
#[test]
fn bash_completes_a_line() {
    let setup = "source <(toolcrib completions bash)\nshown() { printf '<<<%s>>>' \"$READLINE_LINE\"; }\n\
                 bind -x '\"\\C-xp\": shown'\nPS1='READY '\n";
    in_shell(&["bash", "--noprofile", "--rcfile", "setup", "-i"], setup);
}

#[toolcrib_testing::requires(zsh, terminal)]
#[test]
fn zsh_completes_a_line() {
    let setup = "autoload -Uz compinit && compinit -u -D\nsource <(toolcrib completions zsh)\n\
                 shown() { printf '<<<%s>>>' \"$BUFFER\" }\nzle -N shown\nbindkey '^Xp' shown\nPS1='READY '\n";
    in_shell(&["cp", "setup", ".zshrc;", "zsh", "-i"], setup);
}

#[toolcrib_testing::requires(zsh, terminal)]
#[test]
fn zsh_completes_with_the_script_as_a_file_of_fpath() {
    let setup = "mkdir -p sites && toolcrib completions zsh > sites/_toolcrib\nfpath=($PWD/sites $fpath)\n\
                 autoload -Uz compinit && compinit -u -D\n\
                 shown() { printf '<<<%s>>>' \"$BUFFER\" }\nzle -N shown\nbindkey '^Xp' shown\nPS1='READY '\n";
    in_shell(&["cp", "setup", ".zshrc;", "zsh", "-i"], setup);
}

#[toolcrib_testing::requires(fish, terminal)]
#[test]
fn fish_completes_a_line() {
    let setup = "toolcrib completions fish | source\nset fish_greeting\n\
                 function shown; printf '<<<%s>>>' (commandline); end\nbind \\cxp shown\n\
                 function fish_prompt; echo 'READY '; end\n";
    in_shell(&["fish", "--no-config", "--init-command", "'source", "setup'", "-i"], setup);
}
