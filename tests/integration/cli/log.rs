//! The log of the built program (`TOOLCRIB_LOG`).

use crate::support::{
    program::{Bench, code, err},
    spans::{PRIVATE, model},
};

/// Each of `parts` in a line of its own, in this order.
fn assert_story(text: &str, parts: &[&[&str]]) {
    let mut lines = text.lines();
    for part in parts {
        let found = lines.any(|line| part.iter().all(|words| line.contains(words)));
        assert!(found, "no line with {part:?} in its place:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_covers_a_call_a_check_and_a_run() {
    let (url, _model) = model().await;
    let bench = Bench::new(&format!(
        "[servers.one]\ncommand = FIXTURE\n[llm]\nbase_url = \"{url}\"\nmodel = \"m\"\napi_key = \"private-key\"\n"
    ));
    let logged = |arguments: &[&str]| {
        let mut command = bench.command(arguments);
        let output =
            tokio::task::block_in_place(|| command.env("TOOLCRIB_LOG", "toolcrib=debug").output().unwrap());
        let text = err(&output);
        assert_eq!(code(&output), 0, "{text}");
        let private = text
            .lines()
            .filter(|line| line.contains(" DEBUG "))
            .find(|line| PRIVATE.iter().any(|word| line.contains(word)));
        assert_eq!(private, None);
        text
    };
    let start: [&[&str]; 6] = [
        &["server.start server=one: begins", "reason=start"],
        &["server.start server=one: phase ended phase=queue"],
        &["server.start server=one: phase ended phase=spawn"],
        &["server.start server=one: phase ended phase=handshake"],
        &["server.start server=one: phase ended phase=list"],
        &["server.start server=one: ended elapsed_ms=", "pid=", "protocol.version="],
    ];
    let stop: [&[&str]; 4] = [
        &["server.stop server=one: begins"],
        &["server.stop server=one: stop ladder step=stdin_closed"],
        &["server.stop server=one: stop ladder step=exited"],
        &["server.stop server=one: ended elapsed_ms=", "outcome=exited"],
    ];
    let called: [&[&str]; 2] = [
        &["tools/call server=one tool=echo: begins"],
        &["tools/call server=one tool=echo: ended elapsed_ms="],
    ];
    assert_story(
        &logged(&["call", "one.echo", "text=private-argument"]),
        &[&start[..], &called, &stop].concat(),
    );
    assert_story(&logged(&["check"]), &[&start[..], &stop].concat());

    let asked: [&[&str]; 11] = [
        &["invoke_agent task=question: begins"],
        &["chat task=question model=m: begins"],
        &["attempt task=question model=m attempt=1: begins"],
        &[
            "attempt task=question model=m attempt=1: failed",
            "error.type=overloaded",
            "status=503",
            "retry=true",
        ],
        &["wait task=question", ": begins reason="],
        &["wait task=question", ": ended elapsed_ms="],
        &["attempt task=question model=m attempt=2: ended elapsed_ms="],
        &["chat task=question model=m: ended", "usage.input_tokens=100", "attempts=2"],
        &["tools/call task=question server=one tool=echo: begins"],
        &["tools/call task=question server=one tool=echo: ended"],
        &["invoke_agent task=question: ended", "turns=2", "tool_calls=1"],
    ];
    assert_story(&logged(&["run", "private-prompt"]), &[&start[..], &asked, &stop].concat());
}

#[test]
fn the_log_is_off_by_default_and_checks_its_value() {
    let bench = Bench::new("[servers.one]\ncommand = FIXTURE\n");
    let run = |value: &str| {
        // What other programs go by is not read.
        let mut command = bench.command(&["call", "one.echo", "text=hello"]);
        command.env("RUST_LOG", "debug").env("TOOLCRIB_LOG", value).output().unwrap()
    };
    assert!(err(&run("off")).contains("First use"), "which is told once, and is no log");
    for quiet in ["", "off", "warn"] {
        let output = run(quiet);
        assert_eq!((code(&output), &*err(&output)), (0, ""), "{quiet}");
    }
    for (value, words) in
        [("toolcrib=debgu", "TOOLCRIB_LOG is `toolcrib=debgu`"), ("debgu", "`debgu` is not a level")]
    {
        let output = run(value);
        assert_eq!(code(&output), 2, "{}", err(&output));
        assert!(
            err(&output).contains(words) && err(&output).contains("TOOLCRIB_LOG=toolcrib=debug"),
            "{}",
            err(&output)
        );
    }
}
