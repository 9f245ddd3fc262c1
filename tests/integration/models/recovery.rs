//! Agents whose model fails, or whose conversation grows too long: rollbacks, shortened requests, further
//! attempts. A loopback model server and real tool servers.

use serde_json::{Value, json};
use toolcrib::{
    Config, Manager, Outcome,
    cli_support::run_files::RunFiles,
    config::Secrets,
    task::{FailureReason, Reason, Score, Target},
};

use crate::{
    support::model_server::{Model, agent, block, calls, question, run, say, too_long},
    support::{Lab, manager},
};

fn echo(text: &str) -> Value {
    calls(&[("lab__echo", &json!({"text": text}).to_string())])
}

fn events(report: &toolcrib::TaskReport, name: &str) -> Vec<Value> {
    report.log.iter().filter(|event| event["event"] == name).cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_useless_answer_is_rolled_back() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let xml = "tool_protocol = 'xml'\nrollback = { on = ['malformed', 'empty', 'refusal'] }";
    let whole = block("lab", "echo", r#"{"text": "x"}"#);
    let cut = &whole[..whole.len() - 30];
    let model =
        Model::new([say(cut), say(" "), say("I'm sorry, but I can't."), say(&whole), say(""), say("done")]);
    let report = run(&manager, &model, agent(xml), &question()).await;
    assert_eq!((report.status, report.answer.as_deref()), (Outcome::Unscored, Some("done")));
    assert_eq!((report.turns, report.tool_calls, report.llm_calls), (2, 1, 6));
    let counts: Vec<(&str, u32)> = report.rollbacks.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    assert_eq!(counts, [("empty", 2), ("malformed", 1), ("refusal", 1)]);
    // Each was asked with what the one before was asked with.
    assert!((1..4).all(|request| model.messages(request) == model.messages(0)));
    assert_eq!(model.messages(5), model.messages(4));
    let back = events(&report, "rolled_back");
    assert_eq!(
        (&back[0]["said"], &back[0]["in_a_row"], &back[2]["in_a_row"]),
        (&json!(cut), &json!(1), &json!(3))
    );
    assert_eq!(back[3]["in_a_row"], 1, "a good turn starts the count anew");
    assert_eq!(events(&report, "recovered")[0]["after"], 3);

    // Five in a row end it: four were taken back.
    let model = Model::new([say(cut)]);
    let report = run(&manager, &model, agent(xml), &question()).await;
    assert_eq!(
        (report.status, model.requests().len(), report.rollbacks["malformed"]),
        (Outcome::Failed, 5, 4)
    );
    assert_eq!(report.reason, Some(Reason::Failed(FailureReason::UnreadableCall)));
    let error = report.error.unwrap().message;
    assert!(error.contains("cannot be read") && error.contains("5 times in a row"), "{error}");
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_query_is_run_only_if_the_model_insists() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let config = "rollback = { on = ['duplicate'], max = 2 }";
    let twice = calls(&[("lab__echo", r#"{"text": "two"}"#), ("lab__echo", r#"{"text": "one"}"#)]);
    let model =
        Model::new([echo("one"), twice, echo("two"), echo("one"), echo("one"), echo("one"), say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    // "two" was taken back together with the second "one", so it was never asked. The last "one" is let pass.
    assert_eq!((report.rollbacks["duplicate"], report.tool_calls, report.turns), (3, 3, 4));
    assert_eq!(
        model.messages(6)[1..],
        ["assistant: ", "tool: one", "assistant: ", "tool: two", "assistant: ", "tool: one"]
    );

    // What failed was not asked; what is asked is what the configuration says.
    let config = "rollback = { on = ['duplicate'], query_arguments = { progress = ['ms'] } }";
    let progress = |every: u64| calls(&[("lab__progress", &json!({"ms": 1, "every": every}).to_string())]);
    let model = Model::new([echo(""), progress(1), progress(2), say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.rollbacks["duplicate"], report.tool_calls), (1, 2));
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_results_are_rolled_back_with_their_calls() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let config =
        "rollback = { on = ['result', 'invalid_call'], results = ['\"organic\": ?\\[\\]'], max = 2 }";
    let unknown = calls(&[("lab__nothing", "{}")]);
    let empty = echo("{\"organic\": []}");
    let model =
        Model::new([unknown, empty.clone(), echo("found"), empty.clone(), empty.clone(), empty, say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.rollbacks["invalid_call"], report.rollbacks["result"]), (1, 3));
    // All calls were made; the third in a row is accepted.
    assert_eq!((report.tool_calls, report.turns), (5, 3));
    assert_eq!(model.messages(2), model.messages(0));
    assert_eq!(model.messages(6)[2..], ["tool: found", "assistant: ", "tool: {\"organic\": []}"]);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_an_executed_call_is_not_rolled_back() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    // One brought nothing and one was of use; then one may have run: it killed its server.
    let mixed = calls(&[("lab__echo", r#"{"text": "nothing"}"#), ("lab__effect", r#"{"n": 1}"#)]);
    let lost = calls(&[("lab__die", "{}")]);
    let config = "rollback = { on = ['result', 'tool_error'], results = ['^nothing$'], max = 2 }";
    let model = Model::new([mixed, lost, say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.status, report.answer.as_deref()), (Outcome::Unscored, Some("done")));
    assert_eq!(
        (report.turns, report.tool_calls, report.rollbacks.len()),
        (3, 3, 0),
        "{:?}",
        report.rollbacks
    );
    assert!(model.messages(2).last().unwrap().contains("outcome unknown"), "{:?}", model.messages(2));

    // What failed besides brought nothing either.
    let failed = calls(&[("lab__echo", r#"{"text": "nothing"}"#), ("lab__nothing", "{}")]);
    let model = Model::new([failed, say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.turns, report.rollbacks["result"]), (1, 1));
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_rolled_back_turns_stay() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let config = "[agent]\nmax_result_chars = 20\nrollback = { on = ['result'], results = ['nothing'] }\n\
                  [agents.finder]\ndescription = 'Finds facts.'";
    let both = |text: &str| {
        let text = json!({"text": format!("{text:-<30}")}).to_string();
        calls(&[("lab__echo", &text), ("agent__finder", r#"{"task": "find it"}"#)])
    };
    let model = Model::new([both("nothing"), say("nothing"), both("found"), say("fact"), say("done")]);
    let report = run(&manager, &model, agent(config), &question()).await;
    assert_eq!((report.turns, report.rollbacks["result"]), (2, 1), "{:?}", report.error);
    let mut files: Vec<&str> = report.outputs.iter().map(|(file, _)| file.as_str()).collect();
    files.sort_unstable();
    let expected = [
        "agents/1-2-finder/messages.json",
        "agents/2-2-finder/messages.json",
        "results/1-1.txt",
        "results/2-1.txt",
    ];
    assert_eq!(files, expected);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_gets_recent_results_and_the_file_all() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let long = "é".repeat(500);
    let model = Model::new([echo(&long), echo("two"), echo("three"), say("done")]);
    let config = agent("keep_tool_results = 1\nmax_result_chars = 100");
    let report = run(&manager, &model, config, &question()).await;
    let last = model.messages(3);
    assert!(last[2].contains("left out") && last[4].contains("left out"), "{last:?}");
    assert_eq!(last[6], "tool: three");
    assert_eq!((report.results_left_out, report.tokens_saved > 0), (2, true));
    // The file keeps what the model saw once, and beside it what was cut.
    let kept = report.transcript[2]["content"].as_str().unwrap();
    let note = "[cut: the first 100 of 500 characters; all of it: results/1-1.txt]";
    assert_eq!(kept, format!("{}\n{note}", "é".repeat(100)));
    let files = RunFiles::create(&lab.file("run"), &json!({}), Secrets::default()).unwrap();
    files.append(&report).unwrap();
    assert_eq!(std::fs::read_to_string(lab.file("run/tasks/q/1/results/1-1.txt")).unwrap(), long);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_results_hold_no_part_of_a_secret() {
    let lab = Lab::new();
    let mut config = Config::new([lab.server("lab", &[])]);
    config.secrets = Secrets::new(["hunter2-hunter2".to_owned()]);
    let manager = Manager::start(&config).await.unwrap();
    // Its first letter alone may be that of any word.
    let texts = ["the key is hunter2-hunter2 now", "this is a long wish, is it not"];
    let model = Model::new([echo(texts[0]), echo(texts[1]), say("done")]);
    let report = run(&manager, &model, agent("max_result_chars = 19"), &question()).await;
    let kept = [2, 4].map(|index| report.transcript[index]["content"].as_str().unwrap());
    assert!(kept[0].starts_with("the key is ****\n[cut: the first 19 of 30"), "{}", kept[0]);
    assert!(kept[1].starts_with("this is a long wish\n[cut"), "{}", kept[1]);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_conversation_continues_without_old_results() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let model = Model::new([echo("one"), echo("two"), too_long(), echo("three"), say("done")]);
    let report = run(&manager, &model, agent(""), &question()).await;
    assert_eq!((report.status, report.turns), (Outcome::Unscored, 4), "{:?}", report.error);
    let results = |request: usize| -> Vec<String> {
        model.messages(request).into_iter().filter(|message| message.starts_with("tool")).collect()
    };
    assert_eq!(results(2), ["tool: one", "tool: two"]);
    assert_eq!(results(3), ["tool: [this result was left out to save room]", "tool: two"]);
    assert_eq!(results(4)[1..], ["tool: two", "tool: three"]);
    assert_eq!(events(&report, "shortened")[0]["left_out"], 1);

    // The server counts 100 tokens in each request; 2,000 characters more are some 500 tokens.
    let model = Model::new([echo(&"x".repeat(2000)), say("done")]);
    let report = run(&manager, &model, agent("context_tokens = 500"), &question()).await;
    assert!(model.messages(1)[2].contains("left out"), "{:?}", model.messages(1));
    let estimate = events(&report, "shortened")[0]["estimate"].as_u64().unwrap();
    assert!((590..610).contains(&estimate), "{estimate}");

    // Nothing left to leave out.
    let model = Model::new([too_long()]);
    let report = run(&manager, &model, agent(""), &question()).await;
    assert_eq!(report.reason, Some(Reason::Failed(FailureReason::ContextUsedUp)));
    assert_eq!(report.error.unwrap().code, toolcrib::ErrorCode::ContextTooLong);
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_turn_limit_the_answer_is_asked_without_tools() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let lines = "max_turns = 2\nfinal_summary = 'limit'\nanswer = 'boxed'";
    let model =
        Model::new([echo("one"), echo("two"), echo("three"), say("So \\boxed{?}."), say("So \\boxed{42}.")]);
    let mut task = question();
    (task.target, task.score) = (Some(Target::One("42".into())), Some(Score::Boxed));
    let report = run(&manager, &model, agent(lines), &task).await;
    assert_eq!(
        (report.status, report.answer.as_deref()),
        (Outcome::Passed, Some("42")),
        "{:?}",
        report.error
    );
    assert_eq!((report.turns, report.tool_calls, report.llm_calls), (2, 1, 5));
    let last = &model.requests()[4];
    assert_eq!((&last["tool_choice"], last["tools"].is_array()), (&json!("none"), true));
    let asked = model.messages(4);
    assert!(asked.contains(&"tool: one".to_owned()), "the last result is kept");
    let prompt = asked.last().unwrap();
    assert!(
        prompt.starts_with("user: ") && prompt.contains("What is it?") && prompt.contains("\\boxed{}"),
        "{prompt}"
    );
    assert_eq!(events(&report, "summarized").len(), 3);

    // In the text the last result is in the message that asks.
    let lines = format!("{lines}\ntool_protocol = 'xml'\nsummary_prompt = 'End: {{task}}'");
    let call = say(&block("lab", "echo", r#"{"text": "one"}"#));
    let mut two = agent(&lines);
    two.max_turns = 2;
    let model = Model::new([call.clone(), call.clone(), say("\\boxed{7}")]);
    let report = run(&manager, &model, two, &question()).await;
    assert_eq!(report.answer.as_deref(), Some("7"));
    let asked = model.messages(2).pop().unwrap();
    assert!(asked.ends_with("\n\nEnd: What is it?") && asked.contains("not run"), "{asked}");

    // Without an answer in the end, the last one on the way counts; without that, none does.
    let on_the_way = say(&format!("Perhaps \\boxed{{3}}.\n{}", block("lab", "echo", r#"{"text": "one"}"#)));
    for (first, answer) in [(on_the_way, Some("3")), (call, None)] {
        let model = Model::new([first, say("no box")]);
        let report =
            run(&manager, &model, agent("tool_protocol = 'xml'\nanswer = 'boxed'"), &question()).await;
        assert_eq!(report.answer.as_deref(), answer);
        let reason = answer.is_none().then_some(Reason::Failed(FailureReason::NoBoxedAnswer));
        assert_eq!(report.status, if answer.is_some() { Outcome::Unscored } else { Outcome::Failed });
        assert_eq!(report.reason, reason);
    }
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_learns_why_the_last_one_failed() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let lines = "max_turns = 2\nattempts = 3\nfinal_summary = 'limit'\nanswer = 'boxed'";
    let model = Model::new([
        echo("one"),
        echo("two"),
        say("<think>hm</think>I ran out of turns."),
        say("It may be \\boxed{?}."),
        say("no box"),
        say("no box"),
        say("no box"),
        say("I gave no box."),
        say("It is \\boxed{42}."),
    ]);
    let report = run(&manager, &model, agent(lines), &question()).await;
    assert_eq!(
        (report.status, report.answer.as_deref()),
        (Outcome::Unscored, Some("42")),
        "{:?}",
        report.error
    );
    assert_eq!((report.llm_calls, report.turns, report.tool_calls), (9, 4, 1));
    // At a limit nothing is guessed as long as there is another attempt.
    assert!(model.messages(2).last().unwrap().contains("ends without an answer"));
    assert!(model.messages(4).last().unwrap().contains("\\boxed{}"));
    let second = model.messages(3).pop().unwrap();
    assert!(
        second.starts_with("user: What is it?\n") && second.contains("[Attempt 1]\nI ran out of turns."),
        "{second}"
    );
    let third = model.messages(8);
    assert_eq!(third.len(), 1, "each begins anew");
    assert!(third[0].contains("[Attempt 2]\nI gave no box."), "{}", third[0]);
    let again = events(&report, "tried_again");
    assert_eq!((again.len(), &again[0]["attempt"]), (2, &json!(2)));
    assert!(again[0]["why"].as_str().unwrap().contains("turns = 2"));
    // Each attempt has a folder of its own, and the report is that of the last.
    assert_eq!((report.attempt, report.outputs.len()), (3, 0));
    let files = RunFiles::create(&lab.file("run"), &json!({}), Secrets::default()).unwrap();
    files.append(&report).unwrap();
    for (attempt, said) in [(1, "lab__echo"), (2, "It may be"), (3, "42}.")] {
        let file = lab.file(&format!("run/tasks/q/{attempt}/messages.json"));
        let text = std::fs::read_to_string(file).unwrap();
        assert!(text.contains(said), "{attempt}: {text}");
    }
    let line = std::fs::read_to_string(lab.file("run/results.jsonl")).unwrap();
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["attempt"], &line["messages"]), (&json!(3), &json!("tasks/q/3/messages.json")));
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_is_asked_for_behind_the_question_and_once_more() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    let boxed = || agent("answer = 'boxed'");
    let model = Model::new([say("It is 42."), say("Well: \\boxed{42} or \\boxed{43")]);
    let report = run(&manager, &model, boxed(), &question()).await;
    assert_eq!((report.answer.as_deref(), report.llm_calls, report.turns), (Some("42"), 2, 1));
    let asked = model.messages(0).pop().unwrap();
    assert!(asked.starts_with("user: What is it?\n\nPut the final answer itself into \\boxed{}"), "{asked}");
    let again = model.messages(1);
    assert_eq!(again[1], "assistant: It is 42.");
    assert!(again[2].starts_with("user: Your last text has no answer in \\boxed{}"), "{again:?}");
    let summarized = events(&report, "summarized");
    assert_eq!((summarized.len(), &summarized[0]["answered"]), (1, &json!(true)));

    // A second text without a box is reported.
    let model = Model::new([say("It is 42.")]);
    let report = run(&manager, &model, boxed(), &question()).await;
    assert_eq!(report.reason, Some(Reason::Failed(FailureReason::NoBoxedAnswer)));
    assert_eq!((report.llm_calls, model.requests().len()), (2, 2));

    // A question that asks for it in its own words is left as it is.
    let model = Model::new([say("\\boxed{42}")]);
    let own = toolcrib::Task::question("q", "Write \\boxed{N}.");
    let report = run(&manager, &model, boxed(), &own).await;
    assert_eq!((report.answer.as_deref(), report.llm_calls), (Some("42"), 1));
    assert_eq!(model.messages(0), ["user: Write \\boxed{N}."]);
    assert!(manager.shutdown().await.survivors.is_empty());
}
