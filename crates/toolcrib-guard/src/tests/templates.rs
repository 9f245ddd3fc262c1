//! Tests of templates and of the servers that are forked from them, with a template that has only the protocol.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::linux::{guard::looks_like_guard, inspect::stat::Stat};

const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(30);
/// Prints each line that it reads.
pub(super) const ECHO: &str = "for word in sys.stdin: print(word, end='', flush=True)";

pub(super) async fn template(kin: &Supervisor) -> Template {
    let spec = ProcessSpec::new(PYTHON, vec!["-c".into(), include_str!("template.py").into()], "/");
    let template = kin.start_template(&spec).await.unwrap();
    let report = template.report().await;
    assert_eq!(report.as_deref(), Some(&br#"{"ready":{}}"#[..]), "{:?}", template.stderr().lines());
    template
}

fn python(code: &str) -> ProcessSpec {
    let mut spec = ProcessSpec::new("/env/bin/server", vec![format!("import os, sys\n{code}")], "/usr");
    spec.set_env("WORD", "of the server");
    spec
}

async fn try_fork(
    code: &str,
    name: &str,
    template: &Template,
    kin: &Supervisor,
) -> Result<(Process, Pipes), SpawnError> {
    let limit = if name == "busy" { Duration::from_millis(300) } else { LIMIT };
    kin.spawn_from(template, &python(code), name, limit, LONG).await
}

pub(super) async fn fork(code: &str, template: &Template, kin: &Supervisor) -> (Process, Pipes) {
    match try_fork(code, "server", template, kin).await {
        Ok(forked) => forked,
        Err(error) => panic!("{error}: {:?}", template.stderr().lines()),
    }
}

pub(super) async fn echoes(pipes: &mut Pipes) {
    pipes.writer.write(b"there\n").await.unwrap();
    assert_eq!(line(&mut pipes.reader).await, "there");
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

fn is_there(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| !stat.is_zombie())
}

pub(super) async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until there are `servers` and nothing else of `kin` but their guards, the template and the zygote.
async fn until_only(servers: &[&Process], template: &Template, kin: &Supervisor) {
    until(|| {
        let known = |pid: &u32| {
            *pid == template.pid() || servers.iter().any(|server| [server.pid(), server.root()].contains(pid))
        };
        let others: Vec<_> = marked_by(kin).into_iter().filter(|pid| !known(pid)).collect();
        let zygote = Stat::of(template.pid()).and_then(|stat| stat.parent::<u32>());
        others.into_iter().eq(zygote)
    })
    .await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_forked_server_is_one_like_any_other() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let code = "print(os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0), os.getcwd(), os.environ['WORD'], flush=True)\n\
        print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')), flush=True)\n\
        print('a word', file=sys.stderr)\n\
        for word in sys.stdin: print(word, end='', flush=True)\n\
        sys.exit(3)";
    let (process, mut pipes) = fork(code, &template, &kin).await;
    let (pid, guard) = (process.pid(), process.root());
    assert_eq!(line(&mut pipes.reader).await, format!("{pid} {guard} {pid} {guard} /usr of the server"));
    // Its standard streams, and the list itself.
    assert_eq!(line(&mut pipes.reader).await, "['0', '1', '2'] 4");
    let environment = find::environment(pid);
    let mark = find::mark_of(&environment).unwrap();
    assert!(
        mark.starts_with(&format!("{}/", kin.mark())) && environment.starts_with(MARKER.as_bytes()),
        "{mark}"
    );
    assert!(environment.ends_with(b"WORD=of the server\0"));
    assert!(std::fs::read(format!("/proc/{pid}/cmdline")).unwrap().starts_with(b"/env/bin/server\0import"));
    assert_eq!(std::fs::read(format!("/proc/{pid}/comm")).unwrap(), b"server\n");
    assert!(looks_like_guard(guard));
    assert_eq!(Stat::of(guard).unwrap().parent(), Stat::of(template.pid()).unwrap().parent::<u32>());
    // Standard streams, socket, pidfd of the owner, signals, list of children.
    assert_eq!(std::fs::read_dir(format!("/proc/{guard}/fd")).unwrap().count(), 7);
    echoes(&mut pipes).await;
    pipes.writer.close();
    process.exit_watch().exited().await;
    process.stderr().settled(LIMIT).await;
    assert_eq!(process.stderr().lines(), ["a word"]);
    let stopped = process.stop(LONG).await;
    assert_eq!((stopped.outcome, stopped.helpers, stopped.killed), (StopOutcome::Exited, false, Some(0)));
    assert_eq!(describe(stopped.status.unwrap()), "exited with code 3");
    assert_eq!(template.stderr().lines(), ["a word of the template"]);
    until_only(&[], &template, &kin).await;
    until_gone(&kin).await;
    assert!(template.has_ended() && template.report().await.is_none());
}

/// Starts a daemon that does not heed SIGTERM, prints its id, and prints each line that it reads.
const DAEMON: &str = "import signal, time\n\
    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
    if os.fork() == 0:\n    \
        os.setsid()\n    \
        if os.fork() == 0:\n        \
            print(os.getpid(), flush=True)\n        \
            for file in (0, 1, 2): os.close(file)\n        \
            while True: time.sleep(1)\n    \
        os._exit(0)\n\
    os.wait()\n";

/// Starts a server with a daemon that has no mark; also returns the daemon's id.
async fn with_unmarked_daemon(code: &str, template: &Template, kin: &Supervisor) -> (Process, Pipes, u32) {
    let daemon = DAEMON.replace("while True: time.sleep(1)", "os.execve('/bin/sleep', ['sleep', '600'], {})");
    let (process, mut pipes) = fork(&format!("{daemon}{code}"), template, kin).await;
    let daemon: u32 = line(&mut pipes.reader).await.parse().unwrap();
    until(|| std::fs::read(format!("/proc/{daemon}/comm")).is_ok_and(|name| name == b"sleep\n")).await;
    (process, pipes, daemon)
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn daemons_of_a_forked_server_end_with_it_alone() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let code = format!("{DAEMON}{ECHO}\ntime.sleep(600)");
    let (first, mut firsts) = fork(&code, &template, &kin).await;
    let (second, mut seconds) = fork(&code, &template, &kin).await;
    let daemons: [u32; 2] =
        [line(&mut firsts.reader).await, line(&mut seconds.reader).await].map(|pid| pid.parse().unwrap());
    let stopped = first.stop(SHORT).await;
    assert_eq!((stopped.outcome, stopped.helpers, stopped.killed), (StopOutcome::Killed, true, Some(1)));
    assert!(!is_there(daemons[0]) && is_there(daemons[1]));
    echoes(&mut seconds).await;
    drop(second);
    until_only(&[], &template, &kin).await;
    assert!(!is_there(daemons[1]) && !template.has_ended());
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn budgets_of_a_forked_server_hold() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let mut spec = python(
        "import resource\n\
        try: resource.setrlimit(resource.RLIMIT_DATA, (-1, -1))\n\
        except (OSError, ValueError): print('refused', flush=True)\n\
        else: print(resource.getrlimit(resource.RLIMIT_DATA), flush=True)\n\
        sys.stdin.readline(); kept = b'x' * (512 << 20); print(len(kept), flush=True)",
    );
    spec.limits.memory_max = Some(128 << 20);
    let (process, mut pipes) = kin.spawn_from(&template, &spec, "server", LIMIT, LONG).await.unwrap();
    let heard = line(&mut pipes.reader).await;
    // In a cgroup there is no resource limit.
    assert!(heard == "refused" || Support::detect().no_cgroup.is_none(), "{heard}");
    pipes.writer.write(b"go\n").await.unwrap();
    process.exit_watch().exited().await;
    process.stderr().settled(LIMIT).await;
    let exceeded = process.exceeded().unwrap();
    assert!(exceeded.ends_with("memory_max = 128MiB"), "{exceeded}");
    // The next one is free.
    let (_free, mut pipes) = fork(
        "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)); print(len(b'x' * (512 << 20)), flush=True)",
        &template,
        &kin,
    )
    .await;
    assert_eq!(line(&mut pipes.reader).await, "(-1, -1)");
    assert_eq!(line(&mut pipes.reader).await, (512 << 20).to_string());
    spec.limits = ResourceLimits::default();
    spec.sandbox = Some(Sandbox::default());
    let error = kin.spawn_from(&template, &spec, "server", LIMIT, LONG).await.err().unwrap();
    assert!(error.kind == SpawnErrorKind::Template && error.what.contains("sandbox"), "{error}");
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn servers_go_on_without_their_template() {
    for drop_it in [false, true] {
        let [kin, _] = ways();
        let template = template(&kin).await;
        let (process, mut pipes) = fork(ECHO, &template, &kin).await;
        let pid = template.pid();
        if drop_it {
            drop(template);
        } else {
            signal(pid, Signal::KILL);
            assert_eq!(template.report().await, None);
            until(|| template.has_ended()).await;
            let error = try_fork(ECHO, "server", &template, &kin).await.err().unwrap();
            assert!(error.kind == SpawnErrorKind::Template && error.what.contains("ended"), "{error}");
        }
        until(|| Stat::of(pid).is_none()).await;
        echoes(&mut pipes).await;
        let stopped = process.stop(LONG).await;
        assert_eq!((stopped.outcome, stopped.helpers), (StopOutcome::Exited, false));
        until_gone(&kin).await;
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_stopped_template_is_seen() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let (first, mut firsts) = fork(ECHO, &template, &kin).await;
    signal(template.pid(), Signal::STOP);
    until(|| Stat::of(template.pid()).unwrap().state() == Some('T')).await;
    assert!(template.is_stopped());
    for _ in 0..3 {
        let limit = Duration::from_secs(24 * 60 * 60);
        let error = kin.spawn_from(&template, &python(ECHO), "server", limit, LONG).await.err().unwrap();
        assert!(error.kind == SpawnErrorKind::Template && error.what.ends_with("is stopped"), "{error}");
    }
    until_only(&[&first], &template, &kin).await;
    // Ordinary starts do not need it.
    let (ordinary, mut others) = spawn("cat", &kin).await;
    echoes(&mut others).await;
    drop(ordinary);
    signal(template.pid(), Signal::CONT);
    // It answers in turn, so the late ones are decided.
    let (second, mut seconds) = fork(ECHO, &template, &kin).await;
    until_only(&[&first, &second], &template, &kin).await;
    echoes(&mut firsts).await;
    echoes(&mut seconds).await;
    until_gone_with([first, second], &kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_template_that_sleeps_is_seen() {
    let [kin, _] = ways();
    // Before it looks at the order, and after.
    for name in ["server", "asleep"] {
        let template = template(&kin).await;
        let (process, mut pipes) = fork(ECHO, &template, &kin).await;
        if name == "server" {
            assert!(try_fork(ECHO, "asleep", &template, &kin).await.is_err());
        }
        assert_eq!(template.is_silent(), name == "server");
        let error = try_fork(ECHO, name, &template, &kin).await.err().unwrap();
        assert!(error.what.contains("the template sleeps") && template.is_silent(), "{error}");
        echoes(&mut pipes).await;
        drop(template);
        until_gone_with([process], &kin).await;
    }
}

pub(super) async fn until_gone_with<const COUNT: usize>(processes: [Process; COUNT], kin: &Supervisor) {
    drop(processes);
    until_gone(kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn failed_forks_are_told_and_leave_nothing() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let (process, mut pipes) = fork(ECHO, &template, &kin).await;
    let cases = [
        ("refused", "too many threads"),
        ("why", "it does not want to"),
        ("mute", "the fork of the template sleeps"),
        ("stuck", "the fork of the template sleeps"),
        ("busy", "within 300 ms"),
        ("lost", "has ended"),
        ("wrong", "not a fork"),
    ];
    for (name, expected) in cases {
        let error = try_fork(ECHO, name, &template, &kin).await.err().unwrap();
        assert!(error.kind == SpawnErrorKind::Template && error.what.contains(expected), "{name}: {error}");
        let beginning = "could not start /env/bin/server from its template: ";
        assert!(error.what.starts_with(beginning), "{error}");
        assert_eq!(error.help.as_deref(), (name == "refused").then_some("end some"));
        until_only(&[&process], &template, &kin).await;
    }
    let mut spec = python(ECHO);
    spec.cwd = "/no/such/folder".into();
    let error = kin.spawn_from(&template, &spec, "server", LIMIT, LONG).await.err().unwrap();
    assert!(error.what.contains("No such file"), "{error}");
    let [other, group] = ways();
    let error = try_fork(ECHO, "server", &template, &other).await.err().unwrap();
    assert!(error.what.contains("another supervisor"), "{error}");
    let error = group.start_template(&python("")).await.unwrap_err();
    assert!(error.kind == SpawnErrorKind::Template && error.what.contains("needs a guard"), "{error}");
    let error = kin.start_template(&python("")).await.unwrap_err();
    assert!(error.kind == SpawnErrorKind::Template && error.what.contains("No such file"), "{error}");
    echoes(&mut pipes).await;
    until_only(&[&process], &template, &kin).await;
    until_gone_with([process], &kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_forked_server_that_kills_its_guard_ends() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let (other, mut others) = fork(ECHO, &template, &kin).await;
    for stop in [true, false] {
        let code = "sys.stdin.readline(); os.kill(os.getppid(), 9)\ntime.sleep(600)";
        let (process, pipes, daemon) = with_unmarked_daemon(code, &template, &kin).await;
        pipes.writer.write(b"go\n").await.unwrap();
        process.exit_watch().exited().await;
        if stop {
            process.stop(SHORT).await;
        } else {
            drop(process);
        }
        until(|| !is_there(daemon)).await;
        until_only(&[&other], &template, &kin).await;
        echoes(&mut others).await;
    }
    let (after, mut afters) = fork(ECHO, &template, &kin).await;
    echoes(&mut afters).await;
    until_gone_with([other, after], &kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_dropped_start_from_a_template_leaves_no_process() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let spec = python(ECHO);
    for wait in 0..25 {
        let start = kin.spawn_from(&template, &spec, "server", LIMIT, LONG);
        // Dropped at each of its steps.
        drop(tokio::time::timeout(Duration::from_micros(400 * wait), start).await);
    }
    until_only(&[], &template, &kin).await;
    let (process, mut pipes) = fork(ECHO, &template, &kin).await;
    echoes(&mut pipes).await;
    until_gone_with([process], &kin).await;
    // And a dropped start of a template itself.
    for wait in 0..10 {
        let [kin, _] = ways();
        let spec = ProcessSpec::new(PYTHON, vec!["-c".into(), "import time; time.sleep(600)".into()], "/");
        let start = kin.start_template(&spec);
        drop(tokio::time::timeout(Duration::from_micros(500 * wait), start).await);
        until(|| marked_by(&kin).len() <= 1).await;
        until_gone(&kin).await;
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_template_ends_with_its_zygote_and_servers_go_on() {
    let [kin, _] = ways();
    let first = template(&kin).await;
    let (process, mut pipes) = fork(ECHO, &first, &kin).await;
    let zygote: u32 = Stat::of(first.pid()).unwrap().parent().unwrap();
    signal(zygote, Signal::KILL);
    until(|| first.has_ended()).await;
    echoes(&mut pipes).await;
    let error = try_fork(ECHO, "server", &first, &kin).await.err().unwrap();
    assert!(error.what.contains("ended"), "{error}");
    let second = template(&kin).await;
    let (another, mut others) = fork(ECHO, &second, &kin).await;
    echoes(&mut others).await;
    for process in [process, another] {
        assert_eq!(process.stop(LONG).await.outcome, StopOutcome::Exited);
    }
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_killed_owner_leaves_no_template_and_no_fork() {
    const VARIABLE: &str = "TOOLCRIB_TEST_TEMPLATE_OWNER";
    if let Some(mark) = std::env::var_os(VARIABLE) {
        let [kin, _] = ways();
        let stopped = template(&kin).await;
        let spec = python(&format!("{DAEMON}{ECHO}\ntime.sleep(600)"));
        let first = kin.spawn_from(&stopped, &spec, "server", LIMIT, SHORT).await;
        let (_first, mut firsts) = first.ok().unwrap();
        line(&mut firsts.reader).await;
        signal(stopped.pid(), Signal::STOP);
        let spec = python(ECHO);
        let pending = kin.spawn_from(&stopped, &spec, "server", LIMIT, SHORT);
        let telling = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            std::fs::write(Path::new(&mark).with_extension("new"), kin.mark()).unwrap();
            std::fs::rename(Path::new(&mark).with_extension("new"), &mark).unwrap();
            std::future::pending::<()>().await;
        };
        let _ = tokio::join!(pending, telling);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mark");
    let name = "tests::templates::a_killed_owner_leaves_no_template_and_no_fork";
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap());
    let mut owner = owner.args(["--exact", name]).env(VARIABLE, &file).spawn().unwrap();
    until(|| file.exists()).await;
    let mark = std::fs::read_to_string(&file).unwrap();
    let alive = || marked(|found| found.starts_with(&mark));
    // The zygote, the template, a guard, its server and the daemon.
    assert_eq!(alive().len(), 5);
    owner.kill().unwrap();
    owner.wait().unwrap();
    until(|| alive().is_empty()).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn forks_do_not_fail_while_guards_are_killed() {
    let [kin, _] = ways();
    let templates = [template(&kin).await, template(&kin).await];
    // Zygote and manager look for orphans meanwhile; forks that are not guards yet must not count as such.
    for _ in 0..6 {
        let (killed, mut pipes) = fork(&format!("{DAEMON}{ECHO}"), &templates[0], &kin).await;
        let daemon: u32 = line(&mut pipes.reader).await.parse().unwrap();
        signal(killed.root(), Signal::KILL);
        let spec = python(ECHO);
        let one = |at: usize| kin.spawn_from(&templates[at % 2], &spec, "server", LIMIT, LONG);
        let starts = async { tokio::join!(one(0), one(1), one(2), one(3), one(4), one(5), one(6), one(7)) };
        let (_, starts) = tokio::join!(killed.stop(SHORT), starts);
        for (number, start) in <[_; 8]>::from(starts).into_iter().enumerate() {
            let (process, mut pipes) = start.unwrap_or_else(|error| panic!("{number}: {error}"));
            echoes(&mut pipes).await;
            assert_eq!(process.stop(LONG).await.outcome, StopOutcome::Exited);
        }
        until(|| !is_there(daemon)).await;
    }
    assert!(templates.iter().all(|template| !template.has_ended()));
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_fork_that_waits_is_not_taken_for_an_orphan() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let (killed, _pipes, daemon) = with_unmarked_daemon(ECHO, &template, &kin).await;
    let mut spec = python(ECHO);
    // The template tells of its fork once the zygote has killed the orphan.
    spec.args.push(daemon.to_string());
    let start = kin.spawn_from(&template, &spec, "slow", LIMIT, LONG);
    let kill = async { signal(killed.root(), Signal::KILL) };
    let (start, ()) = tokio::join!(start, kill);
    let (process, mut pipes) = start.unwrap_or_else(|error| panic!("{error}"));
    assert!(!is_there(daemon));
    echoes(&mut pipes).await;
    until_gone_with([process, killed], &kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_fork_that_hangs_ends_while_the_zygote_ends() {
    let [kin, _] = ways();
    let template = template(&kin).await;
    let (process, mut pipes) = fork(ECHO, &template, &kin).await;
    let spec = python(ECHO);
    let start = async {
        let hanging = kin.spawn_from(&template, &spec, "stuck", Duration::from_secs(3), LONG);
        hanging.await.err().unwrap()
    };
    let dismiss = async {
        // Two servers, two guards of which one hangs, template and zygote.
        until(|| marked_by(&kin).len() == 6).await;
        // From here on the zygote takes no requests.
        kin.dismiss();
        template.report().await
    };
    let (error, last) = tokio::join!(start, dismiss);
    assert!(error.kind == SpawnErrorKind::Template && last.is_none(), "{error}");
    until(|| marked_by(&kin).len() == 3).await;
    echoes(&mut pipes).await;
    process.stop(LONG).await;
    until_gone(&kin).await;
}
