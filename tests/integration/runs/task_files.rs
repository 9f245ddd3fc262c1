//! Files of tasks as other programs have them, from the command line.

use serde_json::Value;

use crate::support::program::{Bench, code, err, out};

const CONFIG: &str = "[servers.calc]\nbuiltin = \"calc\"\n[llm]\nmodel = \"script:model.toml\"\n";
const MODEL: &str = "[[steps]]\nsay = \"{{user}}\"\n";

fn bench(name: &str, tasks: &str) -> Bench {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    bench.file(name, tasks);
    bench
}

fn totals(bench: &Bench, arguments: &[&str]) -> (Value, String) {
    let done = bench.run(&[&["--json", "run"], arguments].concat());
    let totals = serde_json::from_str(&out(&done)).unwrap_or_else(|_| panic!("{}", err(&done)));
    (totals, err(&done))
}

#[test]
fn tables_and_lists_are_run() {
    for (name, tasks) in [
        ("t.csv", "id,input,target\na,say 4,4\nb,\"say, 5\",6\n"),
        (
            "t.json",
            r#"{"tasks": [{"id": "a", "input": "4", "target": "4"}, {"id": "b", "input": "5", "target": "6"}]}"#,
        ),
        ("t.yaml", "- id: a\n  input: is it 4\n  target: 4\n- id: b\n  input: five\n  target: 6\n"),
    ] {
        let bench = bench(name, tasks);
        let (totals, told) = totals(&bench, &[name]);
        assert_eq!((&totals["passed"], &totals["failed"]), (&1.into(), &1.into()), "{name}: {told}");
    }
}

#[test]
fn tasks_of_another_program_are_told_and_chosen() {
    let line = |n: usize| {
        format!(
            r#"{{"task_id": "g{n}", "task_question": "{n}", "ground_truth": "{n}", "metadata": {{"Level": {}}}}}"#,
            n % 2
        )
    };
    let bench = bench("gaia.jsonl", &(1..=6).map(|n| line(n) + "\n").collect::<String>());
    let all = bench.run(&["run", "gaia.jsonl"]);
    let told = err(&all);
    assert!(told.contains("6 passed"), "{told}");
    assert!(
        told.contains("gaia.jsonl as MiroThinker tasks: task_id -> id, task_question -> input"),
        "{told}"
    );
    let (some, told) = totals(&bench, &["gaia.jsonl", "--filter", "metadata.Level=1", "--limit", "2..3"]);
    assert_eq!(some["passed"], 2, "{told}");
    let none = bench.run(&["run", "gaia.jsonl", "--filter", "id=x*"]);
    assert_eq!(code(&none), 2);
    assert!(err(&none).contains("no task is left") && err(&none).contains("6 tasks"), "{}", err(&none));
    let wrong = bench.run(&["run", "gaia.jsonl", "--dialect", "mirothinkr"]);
    assert!(err(&wrong).contains("did you mean `mirothinker`?"), "{}", err(&wrong));
}

#[test]
fn named_fields_are_the_keys_of_tasks() {
    let bench = bench("t.jsonl", "{\"prompt\": \"4\", \"answer\": \"4\", \"level\": 2}\n");
    let (totals, told) = totals(&bench, &["t.jsonl", "--fields", "input=prompt,target=answer"]);
    assert_eq!(totals["passed"], 1, "{told}");
    let bench = self::bench("t.csv", "id,input\n1,a\n2\n");
    let wrong = bench.run(&["run", "t.csv"]);
    assert!(err(&wrong).contains("t.csv:3: record 2: the record has 1 fields"), "{}", err(&wrong));
}

#[test]
fn a_mistyped_file_is_no_question() {
    let bench = bench("bench.jsonl", "{\"input\": \"4\"}\n");
    std::fs::create_dir(bench.0.path().join("sub")).unwrap();
    bench.file("sub/t.jsonl", "{\"input\": \"4\"}\n");
    for (typed, meant) in [
        ("bench.josnl", "did you mean `bench.jsonl`?"),
        ("bnech.jsonl", "did you mean `bench.jsonl`?"),
        ("sub/tt.jsonl", "did you mean `sub/t.jsonl`?"),
        ("none/t.jsonl", "cannot read the tasks none/t.jsonl"),
    ] {
        let done = bench.run(&["run", typed]);
        assert_eq!(code(&done), 2, "{typed}: {}", out(&done));
        assert!(err(&done).contains(meant), "{typed}: {}", err(&done));
    }
    let asked = bench.run(&["run", "Node.js?"]);
    assert_eq!((code(&asked), out(&asked).trim()), (0, "Node.js?"), "{}", err(&asked));
}

#[test]
fn tasks_without_a_score_take_that_of_the_run() {
    let own = r#"{"id": "own", "input": "is it 5", "target": "5", "score": {"type": "contains"}}"#;
    let other = r#"{"id": "other", "input": "is it 5", "target": "5"}"#;
    let open = r#"{"id": "open", "input": "is it 5"}"#;
    let bench = bench("t.jsonl", &format!("{own}\n{other}\n{open}\n"));
    let counts = |totals: &Value| ["passed", "failed", "unscored"].map(|key| totals[key].as_u64().unwrap());
    assert_eq!(counts(&totals(&bench, &["t.jsonl"]).0), [2, 0, 1]);
    assert_eq!(counts(&totals(&bench, &["t.jsonl", "--score", "exact"]).0), [1, 1, 1]);
    assert_eq!(counts(&totals(&bench, &["t.jsonl", "--score", "numeric:0.1"]).0), [2, 0, 1]);
    bench.file("servers.toml", &format!("{CONFIG}[run]\nscore = \"exact\"\n"));
    assert_eq!(counts(&totals(&bench, &["t.jsonl"]).0), [1, 1, 1]);
    assert_eq!(counts(&totals(&bench, &["t.jsonl", "--score", "contains"]).0), [2, 0, 1]);
    bench.file("servers.toml", &format!("{CONFIG}[run]\nscore = \"exakt\"\n"));
    let wrong = bench.run(&["run", "t.jsonl"]);
    assert_eq!(code(&wrong), 3);
    let told = err(&wrong);
    assert!(told.contains("servers.toml:6: `run.score`") && told.contains("did you mean `exact`?"), "{told}");
}

#[test]
fn a_mistyped_column_is_no_metadata() {
    let bench = bench("t.csv", "id,input,target,scroe\na,4,4,{}\n");
    let wrong = bench.run(&["run", "t.csv"]);
    assert_eq!(code(&wrong), 2);
    let told = err(&wrong);
    assert!(told.contains("t.csv:2: record 1: `scroe` is no key of a task; did you mean `score`?"), "{told}");
    // Less like a key, and beside that key: it may be meant so.
    bench.file("t.csv", "id,input,target,targets,scorers\na,4,4,x,y\n");
    let done = bench.run(&["run", "t.csv"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    assert!(err(&done).contains("`scorers` is no key of a task (did you mean `score`?)"), "{}", err(&done));
    assert!(err(&done).contains("`targets` is no key of a task"), "{}", err(&done));
    // A field that is named and not there.
    bench.file(
        "t.jsonl",
        "{\"prompt\": \"4\", \"answer\": \"4\"}\n{\"prompt\": \"5\", \"solution\": \"5\"}\n",
    );
    for (fields, problem, help) in [
        (
            "input=promt",
            "no task has the field `promt` of --fields input=promt",
            "did you mean `input=prompt`?",
        ),
        ("input=prompt,target=anser", "no task has the field `anser`", "did you mean `target=answer`?"),
        ("input=prompt,target=xyz", "no task has the field `xyz`", "the first task has prompt, answer"),
    ] {
        let wrong = bench.run(&["run", "t.jsonl", "--fields", fields]);
        let told = err(&wrong);
        assert!(code(&wrong) == 2 && told.contains(problem) && told.contains(help), "{fields}: {told}");
    }
    let done = bench.run(&["run", "t.jsonl", "--fields", "input=prompt,target=solution"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
}
