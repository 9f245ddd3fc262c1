//! Tests of servers that block their guard or the zygote, by a helper without a mark; and of an interpreter that hangs.

use rustix::process::{Signal, kill_process_group};

use super::*;
use crate::linux::inspect::stat::Stat;

const PYTHON: &str = "/usr/bin/python3";
/// The common part of the helpers' scripts. `kernel` makes a system call by number.
const PRELUDE: &str = "import ctypes, os, resource, signal, sys, time\n\
    guard = int(sys.argv[1])\n\
    zygote = int(open(f\"/proc/{guard}/stat\").read().rsplit(\")\", 1)[1].split()[1])\n\
    for number in (signal.SIGTERM, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n\
    trace = ctypes.CDLL(None).ptrace\n\
    trace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]\n\
    SEIZE, INTERRUPT = 0x4206, 0x4207\n\
    def seize(pid):\n    \
        assert trace(SEIZE, pid, 0, 0) == 0 and trace(INTERRUPT, pid, 0, 0) == 0\n    \
        os.waitpid(pid, 0x40000000)\n\
    def stop_for_ever(pid):\n    \
        os.kill(pid, signal.SIGSTOP)\n    \
        if os.fork() == 0:\n        \
            while True: os.kill(pid, signal.SIGSTOP)\n\
    def forbid_files(pid): resource.prlimit(pid, resource.RLIMIT_NOFILE, (0, 0))\n\
    def kill(pid):\n    \
        os.kill(pid, signal.SIGKILL)\n";
/// Makes the guard exit by changing its registers, while it waits in a system call.
const EXIT: &str = "seize(guard)\n\
    registers = (ctypes.c_ulonglong * 27)()\n\
    assert trace(12, guard, None, ctypes.addressof(registers)) == 0\n\
    registers[16] -= 2; registers[10] = 231; registers[15] = (1 << 64) - 1; registers[14] = 0\n\
    assert trace(13, guard, None, ctypes.addressof(registers)) == 0\n\
    assert trace(17, guard, None, None) == 0";

/// Starts a server with a helper that has done `attack`; also returns the helper's id.
async fn attacked(attack: &str, kin: &Supervisor) -> (Process, Pipes, u32) {
    let script = format!("{PRELUDE}{attack}\nprint(os.getpid(), flush=True)\ntime.sleep(600)");
    let helper = format!("setsid env -i {PYTHON} -c '{script}' $PPID & cat >/dev/null; sleep 600");
    let (process, mut pipes) = spawn(&helper, kin).await;
    let helper: u32 = line(&mut pipes.reader).await.parse().unwrap();
    assert_eq!(find::mark_of(&find::environment(helper)), None);
    (process, pipes, helper)
}

/// Whether the helper or one of its forks exists.
fn is_there(helper: u32) -> bool {
    find::processes()
        .any(|pid| Stat::of(pid).is_some_and(|stat| stat.field(6) == Some(helper) && !stat.is_zombie()))
}

async fn until_it_is_gone(helper: u32, attack: &str) {
    let deadline = Instant::now() + Duration::from_secs(15);
    while is_there(helper) {
        if Instant::now() > deadline {
            let group = rustix::process::Pid::from_raw(helper.cast_signed()).unwrap();
            let _ = kill_process_group(group, Signal::KILL);
            panic!("still there after {attack}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_blocked_guard_leaves_no_process() {
    // A child of this process that is not a server and must not be ended.
    let mut stranger = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let exit = if cfg!(target_arch = "x86_64") { EXIT } else { "seize(guard)" };
    for attack in ["forbid_files(guard)", "seize(guard)", "stop_for_ever(guard)", exit] {
        for stop in [true, false] {
            let [kin, _] = ways();
            let (process, _pipes, helper) = attacked(attack, &kin).await;
            if stop {
                process.stop(SHORT).await;
                assert!(!is_there(helper), "still there after {attack}");
                kin.end().await;
                assert_eq!(marked_by(&kin), [0_u32; 0], "after {attack}");
            } else {
                drop(process);
            }
            until_it_is_gone(helper, attack).await;
            until_gone(&kin).await;
        }
    }
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_blocked_zygote_leaves_no_process() {
    for attack in ["forbid_files(zygote)", "seize(zygote)", "stop_for_ever(zygote)"] {
        for stop in [true, false] {
            let [kin, _] = ways();
            let (other, mut others) = spawn("read word; echo $word; cat", &kin).await;
            let (process, _pipes, helper) =
                attacked(&format!("{attack}; time.sleep(0.1); kill(guard)"), &kin).await;
            process.exit_watch().exited().await;
            if stop {
                process.stop(SHORT).await;
                assert!(!is_there(helper), "still there after {attack}");
            } else {
                drop(process);
            }
            until_it_is_gone(helper, attack).await;
            // The other servers of the same zygote still work.
            others.writer.write(b"there\n").await.unwrap();
            assert_eq!(line(&mut others.reader).await, "there");
            other.stop(SHORT).await;
            kin.end().await;
            until_gone(&kin).await;
        }
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn servers_of_a_blocked_zygote_end_with_the_manager() {
    for attack in ["seize(zygote)", "stop_for_ever(zygote)"] {
        let [kin, _] = ways();
        let (process, _pipes, helper) =
            attacked(&format!("{attack}; time.sleep(0.1); kill(guard)"), &kin).await;
        process.exit_watch().exited().await;
        kin.end().await;
        assert!(!is_there(helper), "still there after {attack}");
        assert_eq!(marked_by(&kin), [0_u32; 0], "after {attack}");
        drop(process);
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_server_that_asks_its_guard_to_trace_it_continues() {
    let [kin, _] = ways();
    let script = "import ctypes, os, signal, sys\n\
        signal.signal(signal.SIGUSR1, lambda *_: print(\"heard\", flush=True))\n\
        assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0\n\
        os.kill(os.getpid(), signal.SIGUSR1)\n\
        for word in sys.stdin: print(word, end=\"\", flush=True)";
    let (process, mut pipes) = spawn(&format!("exec {PYTHON} -c '{script}'"), &kin).await;
    assert_eq!(line(&mut pipes.reader).await, "heard");
    pipes.writer.write(b"there\n").await.unwrap();
    assert_eq!(line(&mut pipes.reader).await, "there");
    assert_eq!(process.exit_watch().status(), None);
    let stopped = process.stop(LONG).await;
    assert_eq!(stopped.outcome, StopOutcome::Exited);
    assert_eq!(describe(stopped.status.unwrap()), "exited with code 0");
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_blocked_zygote_costs_no_template() {
    for attack in ["seize(zygote)", "stop_for_ever(zygote)"] {
        let [kin, _] = ways();
        let template = templates::template(&kin).await;
        let (forked, mut others) = templates::fork(templates::ECHO, &template, &kin).await;
        let (process, _pipes, helper) =
            attacked(&format!("{attack}; time.sleep(0.1); kill(guard)"), &kin).await;
        process.exit_watch().exited().await;
        // Here the manager kills what the guard has left to the zygote.
        process.stop(SHORT).await;
        assert!(!is_there(helper) && !template.has_ended(), "after {attack}");
        others.writer.write(b"there\n").await.unwrap();
        assert_eq!(line(&mut others.reader).await, "there");
        forked.stop(SHORT).await;
        kin.end().await;
        assert!(template.has_ended());
        until_gone(&kin).await;
    }
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_forked_server_that_blocks_its_guard_ends() {
    for attack in ["seize(guard)", "stop_for_ever(guard)"] {
        for stop in [true, false] {
            let [kin, _] = ways();
            let template = templates::template(&kin).await;
            let script = format!("{PRELUDE}{attack}\nprint(os.getpid(), flush=True)\ntime.sleep(600)");
            let code = format!(
                "guard = str(os.getppid())\n\
                if os.fork() == 0:\n    \
                    os.setsid()\n    \
                    os.execve('{PYTHON}', ['python3', '-c', {script:?}, guard], {{}})\n\
                sys.stdin.read()"
            );
            let (process, mut pipes) = templates::fork(&code, &template, &kin).await;
            let helper: u32 = line(&mut pipes.reader).await.parse().unwrap();
            if stop {
                process.stop(SHORT).await;
                assert!(!is_there(helper), "still there after {attack}");
            } else {
                drop(process);
            }
            until_it_is_gone(helper, attack).await;
            assert!(!template.has_ended(), "after {attack}");
            until_gone(&kin).await;
        }
    }
}

/// Holds back each process that opens a file, as a disk does that does not answer: until a line is written to it.
const HOLD: &str = "import fcntl, os, signal, sys\n\
    signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
    file = os.open(sys.argv[1], os.O_RDONLY)\n\
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
    print('held', flush=True)\n\
    sys.stdin.readline()";

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn a_template_that_hangs_in_its_exec_holds_up_no_other_start() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("python");
    std::fs::copy(std::fs::canonicalize(PYTHON).unwrap(), &program).unwrap();
    let [kin, other] = ways();
    let held =
        ProcessSpec::new(PYTHON, vec!["-c".into(), HOLD.into(), program.to_str().unwrap().into()], "/");
    let (holder, mut pipes) = other.spawn(&held, LONG).await.unwrap();
    assert_eq!(line(&mut pipes.reader).await, "held", "{:?}", holder.stderr().lines());
    let spec = ProcessSpec::new(&program, vec!["-c".into(), include_str!("template.py").into()], "/");
    let starting = kin.start_template(&spec);
    let meanwhile = async {
        // The zygote, and the process that hangs.
        templates::until(|| marked_by(&kin).len() == 2).await;
        let (process, mut echo) = spawn("cat", &kin).await;
        templates::echoes(&mut echo).await;
        assert_eq!(process.stop(LONG).await.outcome, StopOutcome::Exited);
    };
    tokio::pin!(starting);
    tokio::select! {
        _ = &mut starting => panic!("the template was there before the other server"),
        () = meanwhile => {}
    }
    pipes.writer.write(b"go on\n").await.unwrap();
    let template = starting.await.unwrap();
    let (process, mut echo) = templates::fork(templates::ECHO, &template, &kin).await;
    templates::echoes(&mut echo).await;
    drop(holder);
    templates::until_gone_with([process], &kin).await;
}
