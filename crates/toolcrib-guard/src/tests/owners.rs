//! Tests which process may end a server: if the owner reaps any child, after a killed guard.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;
use crate::linux::inspect::stat::Stat;

/// Waits until a process has executed `sleep`.
async fn until_it_sleeps(pid: impl std::fmt::Display) {
    while std::fs::read(format!("/proc/{pid}/comm")).unwrap() != b"sleep\n" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_ended(pid: impl std::fmt::Display) {
    while Stat::of(&pid).is_some_and(|stat| !stat.is_zombie()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[toolcrib_testing::requires(setpriv)]
#[tokio::test]
async fn a_server_that_outlives_its_guard_is_ended() {
    // Like a server with raised rights: it is not killed with its guard, and its mark cannot be read.
    let script = "echo up; exec env -i setpriv --pdeathsig clear sleep 600";
    for stop in [true, false] {
        let [kin, _] = ways();
        let (process, mut pipes) = spawn(script, &kin).await;
        assert_eq!(line(&mut pipes.reader).await, "up");
        let server = Pid::from_raw(process.pid().cast_signed()).unwrap();
        until_it_sleeps(process.pid()).await;
        kill_process(Pid::from_raw(process.root().cast_signed()).unwrap(), Signal::KILL).unwrap();
        process.exit_watch().exited().await;
        if stop {
            process.stop(SHORT).await;
        } else {
            drop(process);
        }
        until_ended(server).await;
        until_gone(&kin).await;
    }
}

#[tokio::test]
async fn unmarked_processes_end_after_a_killed_guard() {
    let [kin, _] = ways();
    for stop in [true, false] {
        // In its own session. A process that keeps forking would be handled in the same way.
        let (process, mut pipes) = spawn("setsid env -i sleep 600 & echo $!; cat", &kin).await;
        let helper: u32 = line(&mut pipes.reader).await.parse().unwrap();
        until_it_sleeps(helper).await;
        assert_eq!(find::mark_of(&find::environment(helper)), None);
        kill_process(Pid::from_raw(process.root().cast_signed()).unwrap(), Signal::KILL).unwrap();
        if stop {
            process.stop(SHORT).await;
        } else {
            drop(process);
        }
        until_ended(helper).await;
        // New guards can be started as before.
        let (process, mut pipes) = spawn("echo up; cat", &kin).await;
        assert_eq!(line(&mut pipes.reader).await, "up");
        process.stop(LONG).await;
    }
    kin.end().await;
    until_gone(&kin).await;
}

#[tokio::test]
async fn unmarked_processes_end_without_guard_and_zygote() {
    for (stop, zygote_first) in [(true, true), (false, true), (true, false)] {
        let [kin, _] = ways();
        let (process, mut pipes) = spawn("setsid env -i sleep 600 & echo $!; cat", &kin).await;
        let helper: u32 = line(&mut pipes.reader).await.parse().unwrap();
        until_it_sleeps(helper).await;
        let zygote: u32 = Stat::of(process.root()).and_then(|stat| stat.parent()).unwrap();
        let mut pids = [zygote, process.root()].map(|pid| Pid::from_raw(pid.cast_signed()).unwrap());
        if !zygote_first {
            kill_process(pids[0], Signal::STOP).unwrap();
            pids.reverse();
        }
        for pid in pids {
            kill_process(pid, Signal::KILL).unwrap();
        }
        process.exit_watch().exited().await;
        // Another server of the same manager is not touched.
        let (other, mut other_pipes) = spawn("setsid env -i sleep 600 & echo $!; cat", &kin).await;
        let kept: u32 = line(&mut other_pipes.reader).await.parse().unwrap();
        until_it_sleeps(kept).await;
        if stop {
            process.stop(SHORT).await;
        } else {
            drop(process);
        }
        until_ended(helper).await;
        assert!(Stat::of(kept).is_some_and(|stat| !stat.is_zombie()));
        other.stop(SHORT).await;
        assert!(Stat::of(kept).is_none_or(|stat| stat.is_zombie()));
        kin.end().await;
        until_gone(&kin).await;
    }
}

#[tokio::test]
async fn orphans_of_a_killed_guard_end_with_its_manager() {
    let [kin, _] = ways();
    let (process, mut pipes) = spawn("setsid env -i sleep 600 & echo $!; cat", &kin).await;
    let helper: u32 = line(&mut pipes.reader).await.parse().unwrap();
    kill_process(Pid::from_raw(process.root().cast_signed()).unwrap(), Signal::KILL).unwrap();
    // From here on no guard can be requested.
    kin.end().await;
    until_ended(helper).await;
    drop(process);
    until_gone(&kin).await;
}

#[toolcrib_testing::requires(python3)]
#[tokio::test]
async fn the_kernel_sends_no_sighup_to_guards() {
    let [kin, _] = ways();
    // A stopped process in the guard's group whose parent, in another group of the session, ends.
    let script = "import os, signal, time\n\
        guard = os.getppid()\n\
        parent = os.fork()\n\
        if parent == 0:\n    \
            os.setpgid(0, 0)\n    \
            child = os.fork()\n    \
            if child == 0:\n        \
                os.setpgid(0, guard)\n        \
                signal.signal(signal.SIGHUP, lambda *_: print(\"hung up\", flush=True))\n        \
                os.kill(os.getpid(), signal.SIGSTOP)\n        \
                time.sleep(600)\n    \
            os.waitpid(child, os.WUNTRACED)\n    \
            os._exit(0)\n\
        os.waitpid(parent, 0)\n\
        time.sleep(600)";
    let (process, mut pipes) = spawn(&format!("exec /usr/bin/python3 -c '{script}'"), &kin).await;
    assert_eq!(line(&mut pipes.reader).await, "hung up");
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!Stat::of(process.pid()).unwrap().is_zombie());
    drop(process);
    until_gone(&kin).await;
}

#[tokio::test]
async fn a_group_whose_leader_was_reaped_is_not_signalled() {
    for stop in [true, false] {
        let [_, kin] = ways();
        // The process without a mark represents another program whose group has the recycled id.
        let script = "env -i sleep 600 >/dev/null 2>&1 & echo $!; sleep 600 >/dev/null 2>&1 & read word";
        let (process, mut pipes) = spawn(script, &kin).await;
        let stranger: i32 = line(&mut pipes.reader).await.parse().unwrap();
        // Until its exec it has the mark.
        until_it_sleeps(stranger).await;
        pipes.writer.write(b"leave\n").await.unwrap();
        process.exit_watch().exited().await;
        // As a program does that reaps any child.
        waitpid(Pid::from_raw(process.pid().cast_signed()), WaitOptions::empty()).unwrap().unwrap();
        if stop {
            assert!(process.stop(SHORT).await.helpers);
        } else {
            drop(process);
        }
        until_gone(&kin).await;
        let stranger = Pid::from_raw(stranger).unwrap();
        assert!(!Stat::of(stranger).unwrap().is_zombie());
        kill_process(stranger, Signal::KILL).unwrap();
    }
}
