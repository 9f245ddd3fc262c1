//! Streams of the old era that go on after their connection broke.

use super::*;

#[test]
fn an_answer_can_be_fetched_after_the_connection_broke() {
    let gate = Gate::new(FIXTURE);
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let mut broken = gate.connect();
    broken.send(
        "POST /mcp",
        &headers,
        &call(1, "fix__progress", &json!({"ms": 1500, "every": 100})).to_string(),
    );
    assert_eq!(broken.head().status, 200);
    let text = broken.until("id: 1-2\n");
    let last = (*ids(&text).last().unwrap()).to_owned();
    drop(broken);
    let resume = |last: &str| {
        let lines = [("Mcp-Session-Id", &*session), ("Accept", "text/event-stream"), ("Last-Event-ID", last)];
        gate.ask("GET /mcp", &lines, "")
    };
    let rest = resume(&last);
    assert_eq!((rest.status, rest.text()), (200, "awake".to_owned()));
    let number = |id: &str| id.strip_prefix("1-").unwrap().parse::<u64>().unwrap();
    let numbers: Vec<u64> = ids(&rest.body).into_iter().map(number).collect();
    assert_eq!(numbers[0], number(&last) + 1, "nothing is missing, nothing comes twice");
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{numbers:?}");
    // Once more, from the beginning: what comes after the first event without a message.
    let again = resume("1-0");
    assert_eq!((ids(&again.body)[0], again.text()), ("1-1", "awake".to_owned()));
    for wrong in ["9-1", "x", "1-"] {
        assert_eq!(resume(wrong).status, 400, "{wrong}");
    }
    assert_eq!(gate.legacy(&session, &call(2, "fix__cancelled", &json!({}))).text(), "0");
}

#[test]
fn a_connection_that_ends_is_no_cancellation() {
    let gate = Gate::new(FIXTURE);
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let in_flight = || gate.legacy(&session, &call(2, "fix__in_flight", &json!({}))).text();
    let mut broken = gate.connect();
    broken.send("POST /mcp", &headers, &call(1, "fix__sleep", &json!({"ms": 700})).to_string());
    wait_for("the call", || in_flight() == "1");
    drop(broken);
    wait_for("its end", || in_flight() == "0");
    assert_eq!(gate.legacy(&session, &call(2, "fix__cancelled", &json!({}))).text(), "0");
    // The end of the session is one.
    let mut broken = gate.connect();
    broken.send("POST /mcp", &headers, &call(3, "fix__sleep", &json!({"ms": 20000})).to_string());
    wait_for("the call", || in_flight() == "1");
    assert_eq!(gate.ask("DELETE /mcp", &[("Mcp-Session-Id", &session)], "").status, 204);
    let other = gate.session("/mcp", "2025-11-25");
    wait_for("the cancellation", || {
        gate.legacy(&other, &call(2, "fix__cancelled", &json!({}))).text() == "1"
    });
}

#[test]
fn the_general_stream_goes_to_who_has_read_it_last() {
    let gate = Gate::new(FIXTURE);
    let session = gate.session("/mcp", "2025-11-25");
    let open = |last: Option<&str>| {
        let mut lines = vec![("Mcp-Session-Id", &*session), ("Accept", "text/event-stream")];
        lines.extend(last.map(|last| ("Last-Event-ID", last)));
        let mut connection = gate.connect();
        connection.send("GET /mcp", &lines, "");
        let status = connection.head().status;
        (connection, status)
    };
    let (mut first, status) = open(None);
    assert_eq!(status, 200);
    first.until("id: 0-0");
    assert_eq!(open(None).1, 409);
    let (mut second, status) = open(Some("0-0"));
    assert_eq!(status, 200, "its connection broke, and nobody here has noticed");
    second.until("id: 0-0");
    assert_eq!(first.part(), "", "the first one ends");
    drop(second);
    wait_for("room", || open(None).1 == 200);
}
