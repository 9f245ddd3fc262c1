//! Faults that a session repairs itself: changed tool lists, calls that were never read, servers that stopped reading.

use std::time::{Duration, Instant};

use serde_json::json;
use toolcrib::{Config, ErrorCode, Manager};

use super::echo;
use crate::support::{Lab, call, manager, say};

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_tool_list_is_read_again_in_both_eras() {
    for era in ["2025-11-25", "2026-07-28"] {
        let lab = Lab::new();
        let manager = manager([lab.chaos("one", &format!("tools-change=told at=1 era={era}"))]).await;
        let tools = manager.toolbox();
        assert!(tools.catalog().find("one", "extra_1").is_err());
        let deadline = Instant::now() + Duration::from_secs(30);
        echo(&tools, "one").await.unwrap();
        while tools.catalog().find("one", "extra_1").is_err() {
            assert!(Instant::now() < deadline, "{era}: the new tool is not in the catalog");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(say(&tools, "one", "extra_1").await.unwrap(), "new here");
        manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_side_effect_before_a_crash_happens_once() {
    let lab = Lab::new();
    let count = lab.flag("count");
    let manager = manager([lab.chaos("one", &format!("crash=during at=2 {count}"))]).await;
    let tools = manager.toolbox();
    assert_eq!(say(&tools, "one", "count").await.unwrap(), "counted");
    let error = say(&tools, "one", "count").await.unwrap_err();
    assert!(error.to_string().contains("outcome unknown, it was sent once"), "{error}");
    assert_eq!(lab.lines("count").len(), 2);
    assert_eq!(say(&tools, "one", "count").await.unwrap(), "counted");
    assert_eq!(lab.lines("count").len(), 3);
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_never_read_is_sent_to_the_next_process() {
    let lab = Lab::new();
    let manager = manager([lab.chaos("one", "stdin-closed at=1")]).await;
    let tools = manager.toolbox();
    let first = say(&tools, "one", "pid").await.unwrap();
    let second = say(&tools, "one", "pid").await.unwrap();
    assert_ne!(first, second, "the process that closed its input is replaced");
    manager.shutdown().await;
    lab.await_nobody();
}

/// A line that does not fit into a pipe that is never read ends its session, and its call in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_reads_nothing_blocks_no_call_past_its_limit() {
    let lab = Lab::new();
    let mut server = lab.chaos("one", "never-reads at=1");
    server.call_timeout = Duration::from_secs(2);
    let manager = Manager::start(&Config::new([server])).await.unwrap();
    let tools = manager.toolbox();
    let before = say(&tools, "one", "pid").await.unwrap();
    let began = Instant::now();
    let error = call(&tools, "one", "echo", json!({"text": "x".repeat(1 << 20)})).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::CallTimeout, "{error}");
    assert!(error.causes()[0].contains("it has not read the call"), "{:?}", error.causes());
    // The write itself is given up after ten seconds; the call has not waited for that.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let deadline = Instant::now() + Duration::from_secs(60);
    let after = loop {
        match say(&tools, "one", "pid").await {
            Ok(pid) => break pid,
            Err(error) => assert!(Instant::now() < deadline, "never usable again: {error}"),
        }
    };
    assert_ne!(before, after);
    manager.shutdown().await;
    lab.await_nobody();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_is_not_taken_for_the_next_call() {
    let lab = Lab::new();
    let mut server = lab.chaos("one", "ignores-cancel=2s at=1");
    server.call_timeout = Duration::from_secs(1);
    let manager = manager([server]).await;
    let tools = manager.toolbox();
    let pid = async || say(&tools, "one", "pid").await;
    assert_eq!(pid().await.unwrap_err().code(), ErrorCode::CallTimeout);
    let known = pid().await.unwrap();
    let until = Instant::now() + Duration::from_secs(3);
    while Instant::now() < until {
        assert_eq!(pid().await.unwrap(), known, "the session is the same");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    manager.shutdown().await;
}
