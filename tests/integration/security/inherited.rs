//! Files, signals and rights that toolcrib inherits are not passed on to servers, guards or the daemon.

use std::{
    fs,
    io::Read,
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use toolcrib_guard::HAS_GUARDS;

use crate::{
    support::crib::Crib,
    support::program::{Bench, Running, code, err, kept_in, up},
    support::{FIXTURE, Lab, is_running, signal, wait_for},
};

/// Somebody without rights.
const NOBODY: u32 = 65534;

/// Starts `command` from a process that ignores and blocks all signals and has `file` open as descriptor 7.
fn burdened(command: &Command, file: &Path) -> Command {
    let mut burdened = Command::new("/bin/sh");
    let script = "exec 7<\"$1\"; shift; exec env --ignore-signal --block-signal \"$@\"";
    burdened.args(["-c", script, "sh"]).arg(file).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        value.map(|value| burdened.env(name, value));
    }
    burdened.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    burdened
}

/// The signals that a line of proc_pid_status(5) has, one bit for each.
fn signals(status: &str, name: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    // Without those that the C library keeps for itself, and sets as it needs them.
    u64::from_str_radix(value.trim(), 16).unwrap() & !(0b111 << 31)
}

/// Processes that have `file` open.
fn holders(file: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |pid: &u32| {
        let list = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        list.into_iter().any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path == file))
    };
    processes.filter(has_it).collect()
}

#[toolcrib_testing::requires(signal_env)]
#[test]
fn a_server_gets_three_pipes_and_default_signals() {
    for guard in ["auto", "off"] {
        // The shell looks at itself: while it starts a program it blocks signals of its own.
        let look = "while read -r line; do echo $$line; done < /proc/self/status > status";
        let script = format!("(ls /proc/$$$$/fd) > open; {look}; exec \\\"$@\\\"");
        let bench = Bench::new(&format!(
            "[defaults]\nguard = {guard:?}\n[servers.one]\ncommand = \"/bin/sh\"\n\
             args = [\"-c\", \"{script}\", \"sh\", FIXTURE]\n"
        ));
        let file = bench.0.path().join("servers.toml");
        let mut command = burdened(&bench.command(&["tools"]), &file);
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{}", err(&output));
        let read = |name: &str| fs::read_to_string(bench.0.path().join(name)).unwrap();
        assert_eq!(read("open").split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"], "{guard}");
        let status = read("status");
        // By number less one: what `nohup` and jobs in the background have ignored is left as it is without a guard.
        let of_the_terminal = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 19 | 1 << 20 | 1 << 21;
        let left = if guard == "off" || !HAS_GUARDS { of_the_terminal } else { 0 };
        assert_eq!(
            (signals(&status, "SigIgn") & !left, signals(&status, "SigBlk")),
            (0, 0),
            "{guard}: {status}"
        );
    }
}

#[toolcrib_testing::requires(signal_env)]
#[test]
fn a_daemon_keeps_no_file_of_its_starter_open() {
    let crib = Crib::new("[servers.fix]\ncommand = FIXTURE\n");
    let file = crib.folder().join("held").canonicalize().unwrap_or_else(|_| crib.folder().join("held"));
    fs::write(&file, "").unwrap();
    let mut command = burdened(&crib.command(&["up", "-d"]), &file);
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert_eq!(holders(&file), [0_u32; 0]);
    let status = fs::read_to_string(format!("/proc/{}/status", crib.pid())).unwrap();
    // SIGPIPE, which every Rust program ignores.
    assert_eq!((signals(&status, "SigIgn"), signals(&status, "SigBlk")), (1 << 12, 0), "{status}");
    crib.ok(&["down"]);
}

#[toolcrib_testing::requires(signal_env)]
#[test]
fn exits_are_seen_where_sigchld_was_ignored() {
    let lab = Lab::new();
    let bench = Bench::new(&format!(
        "[servers.one]\ncommand = FIXTURE\nargs = [\"helper-holds-stdout\"]\nenv = {{ {} = {:?} }}\n",
        Lab::VARIABLE,
        lab.mark()
    ));
    let file = bench.0.path().join("servers.toml");
    let mut command = burdened(&bench.command(&["up"]), &file);
    let mut owner = Running::from(command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap());
    let text = Arc::<Mutex<String>>::default();
    let (mut stderr, heard) = (owner.stderr.take().unwrap(), text.clone());
    std::thread::spawn(move || {
        let mut some = [0; 1024];
        while let Ok(bytes @ 1..) = stderr.read(&mut some) {
            heard.lock().unwrap().push_str(&String::from_utf8_lossy(&some[..bytes]));
        }
    });
    let says = |word: &str| text.lock().unwrap().contains(word);
    wait_for("a server", || says("Serving"));
    let is_fixture = |pid: &u32| {
        let own = Path::new(FIXTURE);
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own)
    };
    let server = lab.servers().into_iter().find(is_fixture).unwrap();
    signal("KILL", server);
    wait_for("its end in words", || says("Lost"));
    signal("TERM", owner.id());
    owner.wait().unwrap();
    lab.await_nobody();
}

#[toolcrib_testing::requires(signal_env)]
#[test]
fn nohup_survives_the_end_of_the_terminal() {
    let bench = Bench::new("[servers.time]\nbuiltin = \"time\"\n");
    for (ignored, goes_on) in [("HUP", true), ("USR1", false)] {
        let plain = bench.command(&["up"]);
        let mut command = Command::new("env");
        command
            // The tests themselves may run under `nohup`, and a shell cannot take back what it was started with.
            .args(["--default-signal=HUP", "sh", "-c", "trap '' \"$1\"; shift; exec \"$@\"", "sh", ignored])
            .arg(plain.get_program())
            .arg("up");
        kept_in(bench.0.path(), &mut command).stdin(Stdio::null()).stdout(Stdio::null());
        let mut owner = Running::from(command.stderr(Stdio::piped()).spawn().unwrap());
        let mut text = String::new();
        let mut stderr = std::io::BufReader::new(owner.stderr.take().unwrap());
        while !text.contains("Serving") {
            assert!(std::io::BufRead::read_line(&mut stderr, &mut text).unwrap() > 0, "ended early: {text}");
        }
        signal("HUP", owner.id());
        if goes_on {
            // Ignored by the kernel: it is never heard, however long one waits.
            let status = fs::read_to_string(format!("/proc/{}/status", owner.id())).unwrap();
            assert_eq!(signals(&status, "SigIgn") & 1, 1, "{status}");
            signal("TERM", owner.id());
        }
        assert!(!owner.wait().unwrap().success());
        assert!(!is_running(owner.id()));
    }
}

/// A folder that others may enter, with a copy of `program` in it that has `mode`.
fn copy(program: &str, mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let copy = folder.path().join(Path::new(program).file_name().unwrap());
    fs::copy(program, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(mode)).unwrap();
    (folder, copy)
}

/// Asks `program` to be where guards come from, as a manager would, but as another user.
fn ask_for_a_guard(program: &Path) -> (std::process::Child, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new(program);
    command.arg0("toolcrib-guard").arg(std::process::id().to_string()).uid(NOBODY).gid(NOBODY);
    command.env_clear().env("TOOLCRIB_GUARD", "4").stdin(std::os::fd::OwnedFd::from(theirs));
    (command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), ours)
}

#[toolcrib_testing::requires(setuid)]
#[test]
fn a_setuid_program_serves_as_no_guard() {
    let (_folder, copy) = copy(env!("CARGO_BIN_EXE_toolcrib"), 0o4755);
    assert_eq!(fs::metadata(&copy).unwrap().uid(), 0);
    let (child, _socket) = ask_for_a_guard(&copy);
    let output = child.wait_with_output().unwrap();
    // Its own `main` has run, and does not know such a command.
    assert_eq!(code(&output), 2, "{output:?}");
    assert!(err(&output).contains("unrecognized subcommand"), "{output:?}");
}

#[toolcrib_testing::requires(guard, setuid)]
#[test]
fn a_guard_refuses_requests_of_another_user() {
    let (_folder, copy) = copy(env!("CARGO_BIN_EXE_toolcrib"), 0o755);
    let (child, _socket) = ask_for_a_guard(&copy);
    // The socket is open still: by itself it would wait for requests.
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), err(&output).as_str()), (0, ""), "{output:?}");
}

#[toolcrib_testing::requires(guard, setuid, setpriv)]
#[test]
fn a_helper_that_became_another_user_is_reported() {
    let (folder, setpriv) = copy("/usr/bin/setpriv", 0o4755);
    // The folder of the build need not be open to other users.
    let (_program_folder, program) = copy(env!("CARGO_BIN_EXE_toolcrib"), 0o755);
    let (_fixture_folder, fixture) = copy(FIXTURE, 0o755);
    let lab = Lab::new();
    let script = format!(
        "{} --reuid 0 --regid 0 --clear-groups sleep 600 </dev/null >/dev/null 2>&1 & echo $! > helper; until grep -q sleep /proc/$!/comm; do :; done; exec \\\"$@\\\"",
        setpriv.display()
    );
    let bench = Bench::new(&format!(
        "[defaults]\neof_grace = \"200ms\"\nterm_grace = \"200ms\"\n[servers.one]\ncommand = \"/bin/sh\"\n\
         args = [\"-c\", \"{script}\", \"sh\", {fixture:?}]\nenv = {{ {} = {:?} }}\n",
        Lab::VARIABLE,
        lab.mark()
    ));
    fs::set_permissions(bench.0.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let plain = bench.command(&["call", "one.pid"]);
    let mut command = Command::new(program);
    command.args(plain.get_args()).current_dir(bench.0.path()).stdin(Stdio::null());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.uid(NOBODY).gid(NOBODY).env("HOME", folder.path());
    let output = command.output().unwrap();
    let helper: u32 = fs::read_to_string(bench.0.path().join("helper")).unwrap().trim().parse().unwrap();
    let guard = crate::support::parent(helper).unwrap();
    let status = fs::read_to_string(format!("/proc/{guard}/status")).unwrap();
    signal("KILL", helper);
    assert_eq!(code(&output), 9, "{}", err(&output));
    assert!(err(&output).contains(&format!("1 process survived teardown: {helper}")), "{}", err(&output));
    assert!(err(&output).contains("(sleep), of user 0"), "{}", err(&output));
    let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    assert!(waits.trim().parse::<u32>().unwrap() < 100, "{status}");
    wait_for("the end of its guard", || !is_running(guard));
}

#[toolcrib_testing::requires(guard, pid_namespace)]
#[test]
fn a_foreign_pid_namespace_in_proc_is_reported() {
    let bench = Bench::new("[servers.one]\ncommand = FIXTURE\n");
    let plain = bench.command(&["doctor"]);
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--pid", "--fork"])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        value.map(|value| command.env(name, value));
    }
    let output = command.current_dir(bench.0.path()).stdin(Stdio::null()).output().unwrap();
    let text = crate::support::program::out(&output) + &err(&output);
    assert!(text.contains("shows another PID namespace"), "{text}");
}

#[toolcrib_testing::requires(guard)]
#[test]
fn a_similar_mark_ends_no_other_server() {
    let lab = Lab::new();
    let bench = Bench::new(&format!(
        "[servers.one]\ncommand = FIXTURE\nenv = {{ {} = {:?} }}\n",
        Lab::VARIABLE,
        lab.mark()
    ));
    let (mut owner, _stderr, _) = up(&bench);
    lab.await_processes(1);
    let before = lab.processes();
    let environment = fs::read(format!("/proc/{}/environ", lab.servers()[0])).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let mark = environment.split('\0').find_map(|entry| entry.strip_prefix("TOOLCRIB_OWNER=")).unwrap();
    let family = mark.split_once('/').unwrap().0;
    let (numbers, random) = family.rsplit_once('.').unwrap();
    let (who, started) = numbers.rsplit_once('.').unwrap();
    let cut = &started[..started.len() - 1];
    let sleeper = |mark: &str| {
        let mut command = Command::new("sleep");
        Running::from(command.arg("600").env_clear().env("TOOLCRIB_OWNER", mark).spawn().unwrap())
    };
    // The first ones are the beginning of the living one's mark. The last one is whole, of an owner that never was.
    let mut other =
        [numbers, &format!("{who}.{cut}"), &format!("{who}.{cut}.{}", &random[..15])].map(&sleeper);
    let mut ownerless = sleeper(&format!("{who}.{cut}.{random}/00000000"));
    let output = Bench::new("[servers.time]\nbuiltin = \"time\"\n").run(&["check"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    // By us, or by any other start on this machine.
    wait_for("the end of who has no owner", || ownerless.try_wait().unwrap().is_some());
    for other in &mut other {
        assert!(other.try_wait().unwrap().is_none(), "what is no mark says nothing");
    }
    assert_eq!(lab.processes(), before);
    signal("TERM", owner.id());
    owner.wait().unwrap();
    lab.await_nobody();
}
