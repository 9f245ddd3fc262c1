//! Real processes: ladder, drop, helpers, missing programs.

use std::time::Duration;

use super::*;

fn shell(script: &str) -> StdioConfig {
    let mut spec = StdioConfig::new("sh", vec!["-c".into(), script.into()], "/");
    spec.env.insert("PATH".into(), std::env::var("PATH").unwrap());
    spec
}

fn marker() -> String {
    format!("test-{:016x}", fastrand::u64(..))
}

async fn until_gone(marker: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !marked_processes(marker).is_empty() {
        assert!(Instant::now() < deadline, "still there: {:?}", marked_processes(marker));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn line(reader: &mut LineReader) -> String {
    match reader.next().await {
        Some(Line::Whole(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("no line: {other:?}"),
    }
}

const SHORT: StopGrace = StopGrace { eof: Duration::from_millis(300), term: Duration::from_millis(300) };
const LONG: StopGrace = StopGrace { eof: Duration::from_secs(30), term: Duration::from_secs(30) };

#[tokio::test]
async fn a_polite_child_leaves_on_end_of_input() {
    let (process, mut pipes) =
        Process::spawn(&shell("echo up; cat >/dev/null; exit 3"), &marker(), &Secrets::default()).unwrap();
    assert_eq!(line(&mut pipes.reader).await, "up");
    let stopped = process.stop(LONG).await;
    assert_eq!(stopped.outcome, StopOutcome::Exited);
    assert_eq!(describe(stopped.status.unwrap()), "exited with code 3");
    assert!(!stopped.helpers);
}

#[tokio::test]
async fn a_stubborn_child_and_its_helper_are_killed() {
    let mark = marker();
    let script = "trap '' TERM; sleep 600 & echo up; while :; do sleep 1; done";
    let (process, mut pipes) = Process::spawn(&shell(script), &mark, &Secrets::default()).unwrap();
    assert_eq!(line(&mut pipes.reader).await, "up");
    let stopped = process.stop(SHORT).await;
    assert_eq!(stopped.outcome, StopOutcome::Killed);
    until_gone(&mark).await;
}

#[tokio::test]
async fn a_helper_that_outlives_a_polite_leader_is_ended() {
    let mark = marker();
    let script = "sleep 600 >/dev/null 2>&1 & echo up; cat >/dev/null";
    let (process, mut pipes) = Process::spawn(&shell(script), &mark, &Secrets::default()).unwrap();
    assert_eq!(line(&mut pipes.reader).await, "up");
    let stopped = process.stop(LONG).await;
    assert_eq!(stopped.outcome, StopOutcome::Exited);
    assert!(marked_processes(&mark).is_empty());
}

#[test]
fn dropping_outside_the_runtime_kills_the_group() {
    let mark = marker();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let process = runtime.block_on(async {
        let script = "trap '' TERM; sleep 600 & echo up; while :; do sleep 1; done";
        let (process, mut pipes) = Process::spawn(&shell(script), &mark, &Secrets::default()).unwrap();
        assert_eq!(line(&mut pipes.reader).await, "up");
        process
    });
    drop(runtime);
    drop(process);
    let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    waiting.block_on(until_gone(&mark));
}

#[tokio::test]
async fn the_last_words_and_the_status_are_kept() {
    let secrets = Secrets::new(["hunter2-hunter2".to_owned()]);
    let script = "echo 'no key hunter2-hunter2' >&2; exit 7";
    let (process, _pipes) = Process::spawn(&shell(script), &marker(), &secrets).unwrap();
    process.exit_watch().exited().await;
    process.stderr().settled(Duration::from_secs(20)).await;
    assert_eq!(describe(process.exit_watch().status().unwrap()), "exited with code 7");
    assert_eq!(process.stderr().lines(), ["no key ****"]);
}

#[tokio::test]
async fn missing_programs_and_folders_are_named() {
    let mut spec = shell("true");
    spec.command = "no-such-program".into();
    let error = Process::spawn(&spec, "m", &Secrets::default()).err().unwrap();
    assert!(error.what.starts_with("could not find the program `no-such-program`"), "{}", error.what);
    let mut spec = shell("true");
    spec.cwd = "/no/such/folder".into();
    let error = Process::spawn(&spec, "m", &Secrets::default()).err().unwrap();
    assert_eq!(error.what, "its working directory /no/such/folder is not a folder");
}

#[tokio::test]
async fn a_child_that_does_not_read_cannot_hold_a_writer_for_ever() {
    let (process, pipes) = Process::spawn(&shell("sleep 600"), &marker(), &Secrets::default()).unwrap();
    let writer = pipes.writer.clone();
    let writing = async { writer.write(&vec![b'x'; 1 << 20]).await };
    let closing = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        pipes.writer.close();
    };
    let (outcome, ()) = tokio::join!(writing, closing);
    assert!(outcome.unwrap_err().may_have_left);
    assert!(pipes.writer.write(b"more\n").await.is_err());
    process.stop(SHORT).await;
}

#[tokio::test]
async fn lines_are_bounded_and_a_torn_read_goes_on() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let mut reader = LineReader::new(client);
    let writer = LineWriter::new(server);
    let long = {
        let mut long = vec![b'a'; MAX_LINE + 10];
        long.push(b'\n');
        long
    };
    let sending = async {
        writer.write(&long).await.unwrap();
        writer.write(b"short\n").await.unwrap();
    };
    let reading = async {
        // Every poll is abandoned now and then: nothing may be lost by it.
        let mut looks = 0;
        loop {
            match tokio::time::timeout(Duration::from_millis(1), reader.next()).await {
                Ok(Some(Line::TooLong { head, tail, total })) => {
                    assert_eq!((head.len(), tail.len(), total), (4096, 4096, MAX_LINE as u64 + 10));
                    break;
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => looks += 1,
            }
            assert!(looks < 1_000_000);
        }
        assert_eq!(line(&mut reader).await, "short");
    };
    tokio::join!(sending, reading);
    writer.close();
    drop(writer);
    assert!(reader.next().await.is_none());
}
