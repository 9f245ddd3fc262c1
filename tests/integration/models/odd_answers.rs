//! Oddities that model servers really send: limits of retries with one request under way, broken calls in a conversation,
//! thoughts in an answer, errors inside a good status, and schemas that APIs refuse.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolcrib_fakes::models::{Arrival, Reply};

use crate::support::{
    Lab, manager,
    model_server::{Model, agent, calls, question, run, say},
    program::{Bench, code, err, out},
};

/// A file that names no model: the command line does.
const FAST: &str = "[llm]\nstream = true\nrequest_timeout = '300ms'\nretry = { profile = 'fast', max = 3 }\n";

fn stream(text: &str) -> Reply {
    Reply::text(200, text).header("content-type", "text/event-stream")
}

fn piece(delta: &Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}))
}

fn ask(bench: &Bench, url: &str) -> (i32, String, Duration) {
    let began = Instant::now();
    let output = bench.run(&["run", "go", "--base-url", url, "--model", "m"]);
    (code(&output), err(&output), began.elapsed())
}

/// The lines of results of all runs in the folder.
fn results(bench: &Bench) -> Vec<Value> {
    let folder = std::fs::read_dir(bench.0.path().join("runs")).unwrap();
    let files = folder.map(|run| run.unwrap().path().join("results.jsonl"));
    let texts = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect::<String>();
    texts.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn max_counts_every_request_whatever_fails() {
    let part = || piece(&json!({"role": "assistant", "content": "part "}));
    type Scene = Box<dyn Fn(&Arrival) -> Reply + Send + Sync>;
    let scenes: [(&str, Scene, &str); 8] = [
        ("500", Box::new(|_| Reply::error(500, "boom")), "boom"),
        ("503", Box::new(|_| Reply::error(503, "loading model")), "loading model"),
        ("429", Box::new(|_| Reply::error(429, "slow down")), "slow down"),
        ("cut", Box::new(move |_| stream(&part()).cut()), "broke off"),
        ("no end", Box::new(move |_| stream(&part())), "broke off"),
        (
            "error event",
            Box::new(|_| {
                stream("event: error\ndata: {\"type\": \"error\", \"message\": \"upstream overloaded\"}\n\n")
            }),
            "upstream overloaded",
        ),
        (
            "error in a piece",
            Box::new(move |_| stream(&format!("{}data: {{\"error\": \"upstream overloaded\"}}\n\n", part()))),
            "upstream overloaded",
        ),
        ("silent", Box::new(|_| Reply::good(Duration::from_secs(3600))), "no answer within 300ms"),
    ];
    for (name, scene, words) in scenes {
        let model = Model::serving(scene);
        let bench = Bench::new(FAST);
        let (exit, told, took) = ask(&bench, &model.url);
        assert_ne!(exit, 0, "{name}: {told}");
        assert!(told.contains(words), "{name}: {told}");
        assert_eq!(model.requests().len(), 3, "{name}: {told}");
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
    }
    let bench = Bench::new(FAST);
    let (exit, told, took) = ask(&bench, "http://127.0.0.1:1/v1");
    assert!(exit != 0 && told.contains("connection refused") && told.contains("--base-url"), "{told}");
    assert!(told.contains("3 attempts") && took < Duration::from_secs(20), "{took:?} {told}");
    let line = &results(&bench)[0];
    assert_eq!((&line["llm_calls"], &line["llm_retries"]), (&json!(3), &json!(2)), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_call_does_not_break_the_conversation() {
    let lab = Lab::new();
    let manager = manager([lab.server("lab", &[])]).await;
    for broken in [
        "{\"text\":\"a\"}\n```",
        "{'text': 'a'}",
        "{\"text\": \"a",
        "{\"text\":\"a\"}{\"text\":\"b\"}",
        "[\"a\"]",
        "7",
        "say a",
    ] {
        // As strict servers do: what the arguments of earlier calls have to be.
        let model = Model::choosing(move |number, body| {
            for message in body["messages"].as_array().unwrap() {
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let arguments = call["function"]["arguments"].as_str().unwrap();
                    if !serde_json::from_str::<Value>(arguments).is_ok_and(|arguments| arguments.is_object())
                    {
                        return json!({"error": {"message": format!("Expecting value: {arguments}"), "code": 400}});
                    }
                }
            }
            if number == 0 { calls(&[("lab__echo", broken), ("no such tool!", broken)]) } else { say("done") }
        });
        let report = run(&manager, &model, agent(""), &question()).await;
        assert_eq!(report.answer.as_deref(), Some("done"), "{broken}: {:?}", report.error);
        let told = model.messages(1);
        assert!(told.iter().any(|message| message.contains(broken)), "{broken}: {told:?}");
    }
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_no_part_of_an_answer() {
    let answers = [
        (json!({"content": [{"type": "text", "text": "4"}]}), Some("4")),
        (json!({"content": 4}), Some("4")),
        (json!({"content": "<think>\nmaybe 5\n</think>\n\n4"}), Some("4")),
        (json!({"content": "maybe 5\n</think>\n\n4"}), Some("4")),
        (json!({"content": "[THINK]maybe 5[/THINK]4"}), Some("4")),
        (
            json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "maybe 5"}]}, {"type": "text", "text": "4"}]}),
            Some("4"),
        ),
        (
            json!({"content": "<|channel|>analysis<|message|>maybe 5<|end|><|start|>assistant<|channel|>final<|message|>4"}),
            Some("4"),
        ),
        (json!({"content": "4", "reasoning_content": "maybe 5"}), Some("4")),
        (json!({"content": "<think>\nwell, 4"}), None),
        (json!({"content": null, "reasoning_content": "it is 4"}), None),
    ];
    for streamed in [false, true] {
        for (message, answer) in answers.clone() {
            let sent = message.clone();
            let model = Model::serving(move |_| {
                let choice = json!({"index": 0, "message": sent, "finish_reason": "stop"});
                if !streamed {
                    return Reply::json(200, &json!({"choices": [choice]}));
                }
                let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
                stream(&format!("{}data: {end}\n\ndata: [DONE]\n\n", piece(&sent)))
            });
            let bench = Bench::new(&format!("[llm]\nstream = {streamed}\n"));
            bench.file("t.jsonl", r#"{"id": "q", "input": "2+2?", "target": "4"}"#);
            let output = bench.run(&[
                "run",
                "t.jsonl",
                "--fresh",
                "--score",
                "exact",
                "--out",
                "runs",
                "--base-url",
                &model.url,
                "--model",
                "m",
            ]);
            let lines = results(&bench);
            let line = lines.first().unwrap_or_else(|| panic!("{}", err(&output)));
            let passed = line["status"] == "passed";
            assert_eq!((line["answer"].as_str(), passed), (answer, answer.is_some()), "{message}: {line}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_are_no_part_of_scores_and_judgements() {
    let judge = Model::new([say("<think>GRADE: I?</think>The same. GRADE: C\n<think>or rather GRADE: I")]);
    for score in [json!({"type": "exact"}), json!({"type": "numeric"}), json!({"type": "judge"})] {
        let agent = Model::new([say("<think>maybe 5</think>4\n<think>or 5")]);
        let bench = Bench::new(&format!(
            "[llm]\nmodel = 'm'\nbase_url = '{}'\n\
             [llm.clients.grader]\nmodel = 'g'\nbase_url = '{}'\n[judge]\nclient = 'grader'\n",
            agent.url, judge.url
        ));
        bench
            .file("t.jsonl", &json!({"id": "q", "input": "2+2?", "target": "4", "score": score}).to_string());
        let output = bench.run(&["run", "t.jsonl", "--fresh"]);
        let line = &results(&bench)[0];
        assert_eq!((&line["status"], &line["answer"]), (&json!("passed"), &json!("4")), "{score}: {line}");
        assert_eq!(code(&output), 0, "{score}: {}", err(&output));
    }
    let asked = judge.requests()[0].to_string();
    assert!(asked.contains('4') && !asked.contains("maybe 5") && !asked.contains("or 5"), "{asked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_last_answer_was_thought_from_is_kept() {
    let manager = manager([]).await;
    for (config, answers) in [
        ("final_summary = 'always'", [say("5"), say("<think>maybe 5</think>4")]),
        ("final_summary = 'never'\nanswer = 'boxed'", [say("4"), say("<think>maybe 5</think>\\boxed{4}")]),
    ] {
        let report = run(&manager, &Model::new(answers), agent(config), &question()).await;
        assert_eq!(report.answer.as_deref(), Some("4"), "{config}: {:?}", report.error);
        let last = report.transcript.last().unwrap();
        assert_eq!(last["reasoning_content"], "maybe 5", "{config}: {last}");
        assert!(!last["content"].as_str().unwrap().contains("maybe"), "{config}: {last}");
    }
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_thought_is_in_the_transcript() {
    let manager = manager([]).await;
    let model = Model::new([say("<think>maybe 5</think>4")]);
    let report = run(&manager, &model, agent(""), &question()).await;
    assert_eq!(report.answer.as_deref(), Some("4"));
    let last = report.transcript.last().unwrap();
    assert_eq!((&last["content"], &last["reasoning_content"]), (&json!("4"), &json!("maybe 5")));
    let report = run(&manager, &Model::new([say("<think>well")]), agent(""), &question()).await;
    assert_eq!(report.answer, None);
    assert!(report.error.unwrap().message.contains("it thought and said nothing"));
    assert!(manager.shutdown().await.survivors.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_in_a_good_status_is_the_endpoints_error() {
    for (body, words, requests) in [
        (json!({"error": "No endpoints found"}), "No endpoints found", 1),
        (
            json!({"choices": null, "base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
            "insufficient balance",
            1,
        ),
        (
            json!({"choices": [{"finish_reason": "error", "error": {"code": 502, "message": "upstream gone"}, "message": {"content": ""}}]}),
            "upstream gone",
            3,
        ),
        (json!({"detail": "Rate limit exceeded"}), "Rate limit exceeded", 3),
        (json!({"message": "maximum context length is 10 tokens", "code": 400}), "maximum context length", 1),
        (json!({"choices": []}), "empty `choices`", 3),
    ] {
        let model = Model::serving(move |_| Reply::json(200, &body));
        let (exit, told, _) = ask(&Bench::new("[llm]\nretry = 'fast'\n"), &model.url);
        assert!(exit != 0 && told.contains(words), "{words}: {told}");
        assert_eq!(model.requests().len(), requests, "{words}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_says_what_to_do() {
    let bench = Bench::new("");
    let (_, told, _) = ask(&bench, &Model::serving(|_| Reply::error(401, "no key")).url);
    assert!(told.contains("= help:") && told.contains("no key was sent"), "{told}");
    assert!(told.contains("api_key") && told.contains("OPENAI_API_KEY"), "{told}");
    let without_key = results(&bench)[0]["error"]["help"].clone();
    assert!(without_key.as_str().unwrap().contains("no key was sent"), "{without_key}");

    let page = Model::serving(|_| Reply::text(404, "<html><title>Not here</title></html>"));
    let (_, told, _) = ask(&bench, page.url.trim_end_matches("/v1"));
    assert!(told.contains(&format!("= help:  the address has no version: try --base-url with {}", page.url)));
    assert!(told.contains("titled `Not here`"), "{told}");

    let (_, told, _) = ask(&Bench::new(FAST), "http://127.0.0.1:1/v1");
    let help =
        "= help:  nothing listens at http://127.0.0.1:1/v1: start the model server or change --base-url";
    assert!(told.contains(help), "{told}");

    // Once for all tasks.
    let refusing = Model::serving(|_| Reply::error(401, "no key"));
    let bench = Bench::new("");
    let task = |id: u32| json!({"id": id.to_string(), "input": "2+2?", "target": "4"}).to_string();
    bench.file("t.jsonl", &(0..5).map(task).collect::<Vec<_>>().join("\n"));
    let output = bench.run(&["run", "t.jsonl", "--base-url", &refusing.url, "--model", "m"]);
    let told = err(&output);
    assert_eq!((told.matches("ERROR").count(), told.matches("= help:").count()), (5, 1), "{told}");
    assert!(results(&bench).iter().all(|line| line["error"]["help"] == without_key), "{told}");
    let shown = out(&bench.run(&["runs", "show"]));
    assert_eq!(shown.matches("no key was sent").count(), 1, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_options_and_variables_are_told() {
    let bench = Bench::new("");
    let (exit, told, _) = ask(&bench, "127.0.0.1:1/v1");
    assert!(exit == 2 && told.contains("--base-url") && !told.contains("[llm]"), "{told}");
    let model = Model::new([say("hi")]);
    let mut command = bench.command(&["run", "go", "--model", "m"]);
    let output =
        command.env("OPENAI_BASE_URL", &model.url).env("OPENAI_API_KEY", "sk-planted").output().unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
    assert!(
        err(&output).contains("OPENAI_API_KEY") && !err(&output).contains("sk-planted"),
        "{}",
        err(&output)
    );
    // All of it from variables; and no key of one address for another.
    let model = Model::new([say("hi"), say("hi")]);
    let set = [
        ("OPENAI_BASE_URL", model.url.as_str()),
        ("OPENAI_API_KEY", "sk-planted"),
        ("OPENAI_MODEL", "named"),
    ];
    let output = bench.command(&["run", "go"]).envs(set).output().unwrap();
    let told = err(&output);
    assert_eq!(code(&output), 0, "{told}");
    assert!(set.iter().all(|(name, _)| told.contains(&format!("Using {name}"))), "{told}");
    assert_eq!(model.requests()[0]["model"], "named");
    let other = [("OPENAI_BASE_URL", "https://other.example/v1"), ("OPENAI_API_KEY", "sk-planted")];
    let output = bench.command(&["run", "go", "--base-url", &model.url, "--model", "m"]).envs(other).output();
    let told = err(&output.unwrap());
    assert!(told.contains("OPENAI_API_KEY is not sent") && !told.contains("Using OPENAI_API_KEY"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn schemas_in_requests_are_objects_with_plain_names() {
    let bench = Bench::new("[servers.odd]\ncommand = 'sh'\nargs = ['server.sh']\n");
    let tools = json!([
        {"name": "union", "inputSchema": {"type": "object", "anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}]}},
        {"name": "named", "inputSchema": {"type": "object", "properties": {"$filter": {"type": "string"}}, "required": ["$filter"]}},
    ]);
    let text = |name: &str| json!({"content": [{"type": "text", "text": name}]}).to_string();
    let script = format!(
        "answer() {{ printf '{{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}}\\n' \"$id\" \"$1\"; }}\n\
         while IFS= read -r line; do\n\
         id=$(printf '%s' \"$line\" | sed -n 's/.*\"id\":\\(\"[^\"]*\"\\|[0-9]*\\).*/\\1/p')\n\
         case \"$line\" in\n\
         *'\"initialize\"'*) answer '{{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{{\"tools\":{{}}}},\"serverInfo\":{{\"name\":\"o\",\"version\":\"1\"}}}}' ;;\n\
         *'\"tools/list\"'*) answer '{{\"tools\":{tools}}}' ;;\n\
         *'\"$filter\":\"x\"'*) answer '{}' ;;\n\
         *'\"tools/call\"'*) answer '{}' ;;\n\
         esac; done\n",
        text("it has its own name"),
        text("it has another name"),
    );
    bench.file("server.sh", &script);
    let model = Model::choosing(|number, body| {
        let tools = body["tools"].as_array().unwrap();
        let named = tools.iter().find(|tool| tool["function"]["name"] == "odd__named").unwrap();
        let sent = named["function"]["parameters"]["required"][0].as_str().unwrap();
        match number {
            0 => calls(&[("odd__named", &json!({sent: "x"}).to_string())]),
            _ => say("done"),
        }
    });
    let (exit, told, _) = ask(&bench, &model.url);
    assert_eq!(exit, 0, "{told}");
    let requests = model.requests();
    for tool in requests[0]["tools"].as_array().unwrap() {
        let parameters = &tool["function"]["parameters"];
        assert!(parameters["type"] == "object" && parameters.get("anyOf").is_none(), "{tool}");
        let legal = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        assert!(
            parameters["properties"].as_object().unwrap().keys().all(|name| name.chars().all(legal)),
            "{tool}"
        );
    }
    let told = model.messages(1);
    assert!(told.iter().any(|message| message.contains("it has its own name")), "{told:?}");
    // The model sees its call as it made it.
    assert!(!requests[1]["messages"].to_string().contains("$filter"), "{}", requests[1]["messages"]);

    let refused =
        Model::new([json!({"error": {"message": "Invalid schema for function 'odd__union'", "code": 400}})]);
    let (_, told, _) = ask(&bench, &refused.url);
    assert!(told.contains("= help:") && told.contains("deny") && told.contains("(`odd__union`)"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_a_model_are_named_in_help() {
    let bench = Bench::new("");
    let refusing = Model::serving(|_| Reply::error(401, "bad key"));
    let (url, key) = (("OPENAI_BASE_URL", refusing.url.as_str()), ("OPENAI_API_KEY", "sk-planted"));
    let told = |arguments: &[&str], set: &[(&str, &str)]| {
        let output = bench.command(arguments).envs(set.iter().copied()).output().unwrap();
        (code(&output), err(&output))
    };
    let (_, wrong_key) = told(&["run", "go", "--model", "m"], &[url, key]);
    assert!(wrong_key.contains("check OPENAI_API_KEY") && !wrong_key.contains("[llm]"), "{wrong_key}");
    let (exit, no_key) = told(&["run", "go", "--model", "m"], &[]);
    assert!(exit == 2 && no_key.contains("--base-url") && no_key.contains("set OPENAI_API_KEY"), "{no_key}");
    for (set, name) in [(&[url, key][..], "OPENAI_BASE_URL"), (&[key], "OPENAI_API_KEY")] {
        let (exit, no_model) = told(&["run", "go"], set);
        let help = format!("{name} is set: add --model NAME, or set OPENAI_MODEL");
        assert!(exit == 78 && no_model.contains(&help) && !no_model.contains("ports"), "{no_model}");
    }
}
