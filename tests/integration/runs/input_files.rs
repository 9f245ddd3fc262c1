//! Tasks that bring files along: each finds copies in its folder, and the model is told where.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::support::program::{Bench, code, err, out};

const CONFIG: &str = r#"
[servers.files]
builtin = "files"
args = ["${task_dir}"]
scope = "task"
[llm]
model = "script:model.toml"
"#;

/// Reads the file `data.csv`, adds to it, and answers with what it was told and what it has read.
const MODEL: &str = r#"
[[steps]]
when = { role = "user" }
calls = [{ tool = "files__read", args = { path = "data.csv" } }]
[[steps]]
say = "{{user}} {{last}}"
"#;

fn bench(tasks: &str) -> Bench {
    let bench = Bench::new(CONFIG);
    bench.file("model.toml", MODEL);
    fs::create_dir_all(bench.0.path().join("set/in")).unwrap();
    bench.file("set/tasks.jsonl", tasks);
    bench.file("set/in/data.csv", "a,b\n1,2\n");
    bench
}

fn runs(bench: &Bench) -> Vec<PathBuf> {
    let runs = fs::read_dir(bench.0.path().join("runs")).map_or_else(|_| Vec::new(), Iterator::collect);
    runs.into_iter().map(|run: std::io::Result<fs::DirEntry>| run.unwrap().path()).collect()
}

fn results(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("results.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_sample_gets_copies_and_their_paths() {
    let bench = bench(
        r#"{"id": "t", "input": "What is b?", "files": ["in/data.csv", {"name": "sub/n.txt", "text": "more"}], "target": "1,2"}"#,
    );
    let done = bench.run(&["run", "set/tasks.jsonl", "--k", "2"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    let [run] = &runs(&bench)[..] else { panic!() };
    let run = fs::canonicalize(run).unwrap();
    for (report, folder) in results(&run).iter().zip(["tasks/t/work", "tasks/t/sample-2/work"]) {
        let folder = run.join(folder);
        assert_eq!(fs::read_to_string(folder.join("data.csv")).unwrap(), "a,b\n1,2\n");
        assert_eq!(fs::read_to_string(folder.join("sub/n.txt")).unwrap(), "more");
        let answer = report["answer"].as_str().unwrap();
        let told = format!(
            "What is b?\n\nThe task has these files, which tools can read:\n- {0}/data.csv\n- {0}/sub/n.txt",
            folder.display()
        );
        assert!(answer.contains(&told), "{answer}");
    }
}

#[test]
fn missing_files_are_named_before_the_run_begins() {
    let bench = bench(concat!(
        "{\"id\": \"a\", \"input\": \"?\", \"files\": [\"in/data.csv\"]}\n",
        "{\"id\": \"b\", \"input\": \"?\", \"files\": [\"in/none.csv\"]}\n",
        "{\"id\": \"c\", \"input\": \"?\", \"files\": [{\"path\": \"in/data.csv\", \"name\": \"../x\"}]}\n",
    ));
    let done = bench.run(&["run", "set/tasks.jsonl"]);
    let told = err(&done);
    assert_eq!(code(&done), 2, "{told}");
    assert!(told.contains("set/tasks.jsonl:2: `files`: cannot read set/in/none.csv: No such file"), "{told}");
    assert!(told.contains("set/tasks.jsonl:3: `files`: the name `../x` has `..`"), "{told}");
    assert!(runs(&bench).is_empty());
}

#[test]
fn a_changed_file_is_another_task() {
    let bench =
        bench(r#"{"task_id": "g", "task_question": "?", "ground_truth": "1,2", "file_name": "in/data.csv"}"#);
    let tasks_of = |bench: &Bench, known: &[PathBuf]| {
        let new = runs(bench).into_iter().find(|run| !known.contains(run)).unwrap();
        let about: Value = serde_json::from_slice(&fs::read(new.join("run.json")).unwrap()).unwrap();
        (about["make"]["tasks"].clone(), about["run"].as_str().unwrap().to_owned())
    };
    let run =
        |bench: &Bench, arguments: &[&str]| bench.run(&[&["run", "set/tasks.jsonl"], arguments].concat());
    let first = run(&bench, &[]);
    assert_eq!(code(&first), 0, "{}", err(&first));
    let (tasks, id) = tasks_of(&bench, &[]);
    let known = runs(&bench);
    assert_eq!(code(&run(&bench, &["--fresh"])), 0);
    assert_eq!(tasks_of(&bench, &known).0, tasks);

    bench.file("set/in/data.csv", "a,b\n1,3\n");
    let known = runs(&bench);
    let other = run(&bench, &["--run", &id]);
    assert!(code(&other) == 2 && err(&other).contains("other tasks"), "{}", err(&other));
    assert_eq!(code(&run(&bench, &[])), 100);
    assert_ne!(tasks_of(&bench, &known).0, tasks);
}

#[test]
fn a_replay_in_another_folder_asks_the_same() {
    let bench = bench(r#"{"id": "t", "input": "?", "files": ["in/data.csv"], "target": "1,2"}"#);
    let recorded = bench.run(&["run", "set/tasks.jsonl", "--record=c.jsonl"]);
    assert_eq!(code(&recorded), 0, "{}", err(&recorded));
    let replayed = bench.run(&["run", "set/tasks.jsonl", "--replay", "c.jsonl"]);
    assert_eq!(code(&replayed), 0, "{}\n{}", err(&replayed), out(&replayed));
}

#[test]
fn a_file_of_inspect_is_a_path_or_its_content() {
    let bench = bench(concat!(
        r#"{"input": "?", "target": "1,2", "files": {"/data.csv": "in/data.csv", "n/a.txt": "inline\ntext", "#,
        r#""b": "data:text/plain;base64,AAH/"}, "setup": "echo"}"#
    ));
    let done = bench.run(&["run", "set/tasks.jsonl"]);
    let told = err(&done);
    assert_eq!(code(&done), 0, "{told}");
    assert!(told.contains("`setup` has no effect") && !told.contains("`files` has no effect"), "{told}");
    let folder = runs(&bench)[0].join("tasks/1/work");
    assert_eq!(fs::read_to_string(folder.join("n/a.txt")).unwrap(), "inline\ntext");
    assert_eq!(fs::read(folder.join("b")).unwrap(), [0, 1, 255]);
}

#[test]
fn a_schema_outside_of_the_folder_of_its_tasks_needs_a_flag() {
    let bench = bench("");
    bench.file("model.toml", "[[steps]]\nsay = '{}'\n");
    fs::create_dir(bench.0.path().join("schemas")).unwrap();
    bench.file("schemas/s.json", "{\"type\": \"object\"}");
    bench.file("set/own.json", "{\"type\": \"object\"}");
    let task = |file: &str| {
        json!({"id": "t", "input": "q", "score": {"type": "json_schema", "file": file}}).to_string()
    };
    bench.file("set/tasks.jsonl", &task("own.json"));
    let done = bench.run(&["run", "set/tasks.jsonl"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    bench.file("set/tasks.jsonl", &task("../schemas/s.json"));
    let done = bench.run(&["run", "set/tasks.jsonl"]);
    let told = err(&done);
    assert!(told.contains("`score.file`: ../schemas/s.json is outside of the folder of its tasks"), "{told}");
    let flag = told.split("--allow-files ").nth(1).and_then(|rest| rest.lines().next()).unwrap().trim();
    let done = bench.run(&["run", "set/tasks.jsonl", "--allow-files", flag]);
    assert_eq!(code(&done), 0, "{}", err(&done));
}

#[test]
fn files_outside_of_the_folder_of_tasks_are_not_read() {
    let bench = bench("");
    bench.file("key.txt", "secret");
    std::os::unix::fs::symlink("/etc/passwd", bench.0.path().join("set/in/link.csv")).unwrap();
    for path in ["/etc/passwd", "../key.txt", "in/../../key.txt", "in/link.csv", "/proc/self/environ"] {
        bench.file("set/tasks.jsonl", &json!({"id": "t", "input": "?", "files": [path]}).to_string());
        let done = bench.run(&["run", "set/tasks.jsonl"]);
        let told = err(&done);
        assert_eq!(code(&done), 2, "{path}: {told}");
        let outside = format!("set/tasks.jsonl:1: `files`: {path} is outside of the folder of its tasks");
        assert!(told.contains(&outside) && told.contains("--allow-files /"), "{told}");
        assert!(runs(&bench).is_empty(), "{path}");
    }
}
