//! Signals end every command, whatever it reads: a pipe that nobody writes to, one that never ends, a device without an end.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::{
        fs::{OpenOptionsExt as _, symlink},
        process::ExitStatusExt as _,
    },
    path::Path,
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, OFlags, mkfifoat};

use crate::support::{
    program::{Bench, CALC_AND_SCRIPT, Running, up},
    signal,
};

/// How long a command may take to end after a signal; on its own, where its input has an end of its own.
const DEADLINE: Duration = Duration::from_secs(60);

const SIGNALS: [(&str, i32); 2] = [("TERM", 15), ("INT", 2)];

/// The commands that take a file, each with the file that it is given.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["run", "in/tasks.jsonl"], "in/tasks.jsonl"),
    (&["run", "in/tasks.json"], "in/tasks.json"),
    (&["run", "in/tasks.csv"], "in/tasks.csv"),
    (&["run", "in/tasks.yaml"], "in/tasks.yaml"),
    (&["run", "in/tasks"], "in/tasks"),
    (&["run", "folder/"], "folder/a.json"),
    (&["run", "tasks.jsonl", "--replay", "in/cassette"], "in/cassette"),
    (&["run", "tasks.jsonl", "--run", "r"], "runs/r/run.json"),
    (&["run", "tasks.jsonl", "--config", "in/servers.toml"], "in/servers.toml"),
    (&["report", "r"], "runs/r/run.json"),
    (&["report", "r"], "runs/r/events.jsonl"),
    (&["report", "r"], "runs/r/results.jsonl"),
    (&["export", "csv", "r"], "runs/r/results.jsonl"),
    (&["export", "perfetto", "r"], "runs/r/events.jsonl"),
    (&["diff", "r", "r"], "runs/r/results.jsonl"),
    (&["runs"], "runs/r/run.json"),
    (&["import", "in/mcp.json"], "in/mcp.json"),
    (&["check", "--config", "in/servers.toml"], "in/servers.toml"),
    (&["tools", "--config", "in/servers.toml"], "in/servers.toml"),
    (&["doctor", "--config", "in/servers.toml"], "in/servers.toml"),
    (&["doctor", "--config", "with_env.toml"], "in/env"),
    (&["check", "--config", "with_env.toml"], "in/env"),
    (&["check", "--config", "imports.toml"], "in/mcp.json"),
    (&["lock", "--diff"], "toolcrib.lock"),
];

fn bench() -> Bench {
    let bench = Bench::new(CALC_AND_SCRIPT);
    bench.file("model.toml", "[[steps]]\nsay = \"4\"\n");
    bench.file("tasks.jsonl", "{\"id\": \"a\", \"input\": \"q\"}\n");
    bench.file("with_env.toml", "[servers.x]\ncommand = \"/bin/cat\"\nenv_file = \"in/env\"\n");
    bench.file("imports.toml", "import = [\"in/mcp.json\"]\n");
    for folder in ["in", "folder", "runs/r"] {
        fs::create_dir_all(bench.0.path().join(folder)).unwrap();
    }
    bench.file("runs/r/run.json", "{\"run\": \"r\", \"schema\": 1}");
    bench
}

fn start(bench: &Bench, words: &[&str]) -> Running {
    let mut command = bench.command(words);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap().into()
}

fn ended(child: &mut Running, what: &str) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(begun.elapsed() < DEADLINE, "{what} goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The end of the pipe to write to, once the command has opened the other. `None`: it ended without opening it.
fn writer(child: &mut Running, pipe: &Path) -> Option<File> {
    loop {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        if let Ok(writer) = OpenOptions::new().write(true).custom_flags(flags).open(pipe) {
            return Some(writer);
        }
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_ended_by(status: ExitStatus, number: i32, what: &str) {
    let by_signal = status.signal() == Some(number) || status.code() == Some(128 + number);
    assert!(by_signal, "{what}: {status}");
}

#[test]
fn signals_end_a_command_that_waits_for_a_pipe() {
    let mut waited = 0;
    for (words, file) in COMMANDS {
        for (name, number) in SIGNALS {
            let bench = bench();
            let pipe = bench.0.path().join(file);
            let _ = fs::remove_file(&pipe);
            mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
            let mut child = start(&bench, words);
            let what = format!("{words:?} on {file}, SIG{name}");
            // It waits for what will not come, or has refused the pipe.
            if let Some(_writer) = writer(&mut child, &pipe) {
                waited += 1;
                signal(name, child.id());
                assert_ended_by(ended(&mut child, &what), number, &what);
            }
        }
    }
    assert!(waited >= 12, "only {waited} commands have waited");
}

#[test]
fn signals_end_a_command_that_reads_without_end() {
    for (words, file) in [COMMANDS[0], COMMANDS[2], COMMANDS[3]] {
        for (name, number) in SIGNALS {
            let bench = bench();
            let pipe = bench.0.path().join(file);
            mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
            let mut child = start(&bench, words);
            let what = format!("{words:?} on an endless {file}, SIG{name}");
            let mut writer = writer(&mut child, &pipe).unwrap();
            rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
            for _ in 0..256 {
                writer.write_all(&[b' '; 4096]).unwrap();
            }
            signal(name, child.id());
            // It goes on as long as it is read.
            let flood = std::thread::spawn(move || while writer.write_all(&[b' '; 4096]).is_ok() {});
            assert_ended_by(ended(&mut child, &what), number, &what);
            flood.join().unwrap();
        }
    }
}

#[test]
fn a_device_without_an_end_ends_no_command_late() {
    for (words, file) in COMMANDS.iter().filter(|(words, _)| words[0] != "run") {
        let bench = bench();
        let path = bench.0.path().join(file);
        let _ = fs::remove_file(&path);
        symlink("/dev/zero", &path).unwrap();
        let mut child = start(&bench, words);
        ended(&mut child, &format!("{words:?} on /dev/zero as {file}"));
    }
    // Tasks may be a device: they are read up to a limit.
    for (name, number) in SIGNALS {
        let bench = bench();
        symlink("/dev/zero", bench.0.path().join("in/tasks.jsonl")).unwrap();
        let mut child = start(&bench, &["run", "in/tasks.jsonl"]);
        signal(name, child.id());
        let status = ended(&mut child, "run on /dev/zero");
        // Before it listens, the signal ends it as any program.
        assert_ended_by(status, number, "run on /dev/zero");
    }
}

#[test]
fn an_env_file_is_a_file() {
    for target in ["/dev/zero", "pipe"] {
        let bench = bench();
        let at = |name: &str| bench.0.path().join(name);
        mkfifoat(CWD, at("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
        symlink(if target == "pipe" { at("pipe") } else { target.into() }, at("in/env")).unwrap();
        let done = bench.run(&["check", "--config", "with_env.toml"]);
        let told = crate::support::program::err(&done) + &crate::support::program::out(&done);
        assert!(told.contains("in/env is not a regular file"), "{target}: {told}");
        assert!(told.contains("at most 1 MiB"), "{target}: {told}");
    }
}

#[test]
fn the_signal_that_came_is_named() {
    for (name, words) in [("TERM", "after SIGTERM (a second signal"), ("INT", "(a second Ctrl-C")] {
        let bench = Bench::new("[servers.time]\nbuiltin = \"time\"\n");
        let (child, mut stderr, _) = up(&bench);
        signal(name, child.id());
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        assert!(said.contains(&format!("Stopping {words}")), "{said}");
    }
}
