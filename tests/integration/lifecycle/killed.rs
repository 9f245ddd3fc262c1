//! SIGKILL of toolcrib itself: the guards end everything; without them the next start does.

use std::process::Command;

use crate::{
    support::program::{Bench, Running, code, err, up},
    support::{Lab, is_running, parent, signal, wait_for},
};

/// A server that nothing but SIGKILL ends, with a helper that left its process group.
fn stubborn(lab: &Lab, guard: &str) -> Bench {
    with_helper(lab, guard, "setsid sleep 600")
}

/// The same with `helper`, a command of a shell.
fn with_helper(lab: &Lab, guard: &str, helper: &str) -> Bench {
    let script = format!("{helper} & exec \\\"$@\\\"");
    Bench::new(&format!(
        "[defaults]\nguard = {guard:?}\neof_grace = \"200ms\"\nterm_grace = \"200ms\"\n\
         [servers.one]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{script}\", \"sh\", FIXTURE, \"ignore-eof\", \"ignore-term\"]\n\
         env = {{ {} = {:?} }}\n",
        Lab::VARIABLE,
        lab.mark()
    ))
}

fn kill(mut owner: Running) {
    owner.kill().unwrap();
    owner.wait().unwrap();
}

#[toolcrib_testing::requires(guard)]
#[test]
fn guards_end_all_servers_when_toolcrib_is_killed() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    kill(owner);
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[test]
fn guards_end_all_servers_without_their_zygote() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    let guards = lab.guards();
    let [guard] = guards[..] else { panic!("{guards:?}") };
    let zygote = parent(guard).unwrap();
    assert_eq!(parent(zygote), Some(owner.id()));
    signal("KILL", zygote);
    wait_for("another parent", || parent(guard) != Some(zygote));
    assert_eq!(lab.guards(), [guard]);
    kill(owner);
    lab.await_nobody();
    wait_for("the end of the guard", || !is_running(guard));
}

#[toolcrib_testing::requires(guard)]
#[test]
fn a_stopped_guard_is_woken_when_toolcrib_is_killed() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    let guards = lab.guards();
    let [guard] = guards[..] else { panic!("{guards:?}") };
    signal("STOP", guard);
    kill(owner);
    lab.await_nobody();
    wait_for("the end of the guard", || !is_running(guard));
}

#[toolcrib_testing::requires(guard)]
#[test]
fn a_zygote_ends_with_its_owner() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    let zygote = lab.guards().first().copied().and_then(parent).unwrap();
    kill(owner);
    lab.await_nobody();
    wait_for("the end of the zygote", || !is_running(zygote));
}

#[toolcrib_testing::requires(guard)]
#[test]
fn without_guards_the_next_start_sweeps_leftovers() {
    // Any start on this machine may find it first: only one of many has to be ours.
    for _ in 0..20 {
        let lab = Lab::new();
        let bench = stubborn(&lab, "off");
        let (owner, _stderr, _) = up(&bench);
        lab.await_processes(2);
        let pid = owner.id();
        kill(owner);
        let other = Bench::new("[servers.time]\nbuiltin = \"time\"\n");
        let output = other.run(&["check"]);
        assert_eq!(code(&output), 0, "{}", err(&output));
        lab.await_nobody();
        let said = err(&output);
        if let Some(line) = said.lines().find(|line| line.contains(&format!("left behind by toolcrib {pid}")))
        {
            // Its arguments may hold secrets, and they are those of another configuration.
            assert!(line.contains(": toolcrib-fakes") && !line.contains("ignore"), "{line}");
            return;
        }
    }
    panic!("nobody said that it ended a leftover");
}

#[toolcrib_testing::requires(guard)]
#[test]
fn servers_of_a_living_manager_are_not_swept() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "off"));
    lab.await_processes(2);
    let before = lab.servers();
    let output = Bench::new("[servers.time]\nbuiltin = \"time\"\n").run(&["check"]);
    // Of other owners' leftovers, those of other tests, it may well speak.
    let blamed = format!("left behind by toolcrib {} ", owner.id());
    assert!(!err(&output).contains(&blamed), "{}", err(&output));
    assert_eq!(lab.servers(), before);
    let stopped = Command::new("kill").args(["-TERM", &owner.id().to_string()]).status().unwrap();
    assert!(stopped.success());
    // The process group is all that such an owner can end: what left it remains, and is ended here.
    let mut owner = owner;
    assert_eq!(owner.wait().unwrap().code(), Some(9));
    for pid in lab.servers() {
        Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    }
    lab.await_nobody();
}

#[toolcrib_testing::requires(time_namespace)]
#[test]
fn another_time_namespace_sweeps_nothing() {
    let lab = Lab::new();
    let (mut owner, _stderr, _) = up(&stubborn(&lab, "off"));
    lab.await_processes(2);
    let before = lab.servers();
    let other = Bench::new("[servers.time]\nbuiltin = \"time\"\n");
    let plain = other.command(&["check"]);
    let mut command = Command::new("unshare");
    command.args(["--time", "--boottime", "100000", "--"]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        value.map(|value| command.env(name, value));
    }
    if let Some(folder) = plain.get_current_dir() {
        command.current_dir(folder);
    }
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert_eq!(lab.servers(), before);
    signal("TERM", owner.id());
    owner.wait().unwrap();
    for pid in lab.servers() {
        signal("KILL", pid);
    }
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard)]
#[test]
fn a_stopped_guard_is_woken_by_the_next_start() {
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    for pid in lab.processes() {
        Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap();
    }
    kill(owner);
    let output = Bench::new("[servers.time]\nbuiltin = \"time\"\n").run(&["check"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    lab.await_nobody();
}

#[toolcrib_testing::requires(guard, freezer)]
#[test]
fn a_frozen_helper_is_ended_by_the_next_start() {
    use std::fs;

    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let is_freezer =
        |line: &Vec<&str>| line[2] == "cgroup" && line[3].split(',').any(|option| option == "freezer");
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mount = mounts.into_iter().find(is_freezer).unwrap()[1].to_owned();
    let group = std::path::Path::new(&mount).join(format!("toolcrib-killed-{}", std::process::id()));
    fs::create_dir(&group).unwrap();
    let lab = Lab::new();
    let (owner, _stderr, _) = up(&stubborn(&lab, "auto"));
    lab.await_processes(2);
    let is_helper = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() == "sleep\n";
    let (helpers, servers): (Vec<u32>, Vec<u32>) = lab.processes().into_iter().partition(is_helper);
    let [helper] = helpers[..] else { panic!("{helpers:?}") };
    fs::write(group.join("cgroup.procs"), helper.to_string()).unwrap();
    fs::write(group.join("freezer.state"), "FROZEN").unwrap();
    wait_for("it is frozen", || {
        fs::read_to_string(group.join("freezer.state")).unwrap().starts_with("FROZEN")
    });
    kill(owner);
    wait_for("the end of the server", || servers.iter().all(|pid| !is_running(*pid)));
    // Another test may have begun the next start already.
    let output = Bench::new("[servers.time]\nbuiltin = \"time\"\n").run(&["check"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    lab.await_nobody();
    wait_for("the end of the group", || fs::remove_dir(&group).is_ok());
}

/// Is not dumpable, so that only root can read its environment. Writes its id into a file.
const UNDUMPABLE: &str = "import ctypes, os, sys, time\n\
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n\
    open(sys.argv[1] + '.new', 'w').write(str(os.getpid()))\n\
    os.rename(sys.argv[1] + '.new', sys.argv[1])\n\
    time.sleep(600)\n";

#[toolcrib_testing::requires(guard, root, python3)]
#[test]
fn a_helper_that_is_not_dumpable_is_named_and_ended() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};

    // As an ordinary user, to whom the folder of the build need not be open.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let [program, fixture] = [env!("CARGO_BIN_EXE_toolcrib"), crate::support::FIXTURE].map(|file| {
        let copy = folder.path().join(std::path::Path::new(file).file_name().unwrap());
        std::fs::copy(file, &copy).unwrap();
        copy
    });
    let (script, pid_file) = (folder.path().join("helper.py"), folder.path().join("helper"));
    std::fs::write(&script, UNDUMPABLE).unwrap();
    let bench = Bench::new(&format!(
        "[servers.one]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"setsid /usr/bin/python3 {} {} & exec \\\"$@\\\"\", \"sh\", {fixture:?}]\n",
        script.display(),
        pid_file.display(),
    ));
    std::fs::set_permissions(bench.0.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        let plain = bench.command(arguments);
        command
            .args(plain.get_args())
            .envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(bench.0.path()).uid(65534).gid(65534).env("HOME", folder.path());
        command
    };
    let piped = std::process::Stdio::piped;
    let mut owner = run(&["up"]).stdin(piped()).stdout(piped()).stderr(piped()).spawn().unwrap();
    wait_for("the helper", || pid_file.exists());
    let helper: u32 = std::fs::read_to_string(&pid_file).unwrap().parse().unwrap();
    let server = parent(helper).unwrap();
    let guard = parent(server).unwrap();
    let all = [owner.id(), parent(guard).unwrap(), guard];
    for kind in ["STOP", "KILL"] {
        for pid in &all {
            signal(kind, *pid);
        }
    }
    owner.wait().unwrap();
    wait_for("the end of the server", || !is_running(server));
    assert!(is_running(helper));
    let doctor = run(&["doctor"]).output().unwrap();
    let said = crate::support::program::out(&doctor);
    assert!(said.contains(&format!("pid {helper} of toolcrib {}, which was killed", owner.id())), "{said}");
    bench.file("servers.toml", "[servers.time]\nbuiltin = \"time\"\n");
    let check = run(&["check"]).output().unwrap();
    wait_for("the end of the helper", || !is_running(helper));
    assert_eq!(code(&check), 0, "{}", err(&check));
    let said = format!("ended process {helper}, left behind by toolcrib {}", owner.id());
    assert!(err(&check).contains(&said), "{}", err(&check));
}

/// Stops its guard and the zygote again and again, once it is told to, for a minute at most. It has no mark.
const BLOCKER: &str = "import os, signal, sys, time\n\
    guard = int(sys.argv[1])\n\
    zygote = int(open(f'/proc/{guard}/stat').read().rsplit(')', 1)[1].split()[1])\n\
    while not os.path.exists(sys.argv[2]): time.sleep(0.005)\n\
    end = time.monotonic() + 60\n\
    while time.monotonic() < end:\n    \
        for pid in (guard, zygote): os.kill(pid, signal.SIGSTOP)\n";

#[toolcrib_testing::requires(guard, python3)]
#[test]
fn a_blocked_guard_is_ended_by_the_next_start() {
    let lab = Lab::new();
    let (script, go) = (lab.file("blocker.py"), lab.file("go"));
    std::fs::write(&script, BLOCKER).unwrap();
    let helper = format!("setsid env -i /usr/bin/python3 {} $$PPID {}", script.display(), go.display());
    let (owner, _stderr, _) = up(&with_helper(&lab, "auto", &helper));
    let guards = lab.guards();
    let [guard] = guards[..] else { panic!("{guards:?}") };
    let zygote = parent(guard).unwrap();
    std::fs::write(go, "").unwrap();
    let is_stopped = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    wait_for("two stopped processes", || is_stopped(guard) && is_stopped(zygote));
    kill(owner);
    let output = Bench::new("[servers.time]\nbuiltin = \"time\"\n").run(&["check"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    lab.await_nobody();
    wait_for("the end of the guard and the zygote", || !is_running(guard) && !is_running(zygote));
}
