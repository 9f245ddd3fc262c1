//! Nothing of one server is seen in another one of the same template, or in the template.

use std::{
    collections::{BTreeSet, HashMap},
    process::Command,
};

use serde_json::{Value, json};
use toolcrib::{Endpoint, ServerConfig};

use crate::support::python::{PythonLab, ask, forked};

const SERVERS: usize = 8;

/// Values that only one server is given: in its first and a later argument, a variable, its working directory.
fn own_words(number: usize) -> [String; 4] {
    let code = ["amber", "basil", "cedar", "delta", "ebony", "fjord", "grape", "hazel"][number];
    [
        format!("first-{code}-{code}"),
        format!("--token=word-{code}"),
        format!("variable-{code}"),
        format!("folder-of-{code}"),
    ]
}

/// The parts of a process that are to be of one server alone.
#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_one_server_is_seen_in_another() {
    let lab = PythonLab::new(&[]);
    let servers = (0..SERVERS).map(|number| {
        let [first, later, variable, folder] = own_words(number);
        let name = folder.strip_prefix("folder-of-").unwrap();
        let mut server = lab.server(name, "teller.py", &[first, "--x".to_owned(), later]);
        if let Endpoint::Stdio(child) = &mut server.endpoint {
            child.set_env("OWN", &variable);
            child.set_env(format!("NAME_{number}"), format!("{variable}-{number}"));
        }
        server
    });
    let manager = lab.manager(servers).await;
    let (first, mut told) = forked(&manager, "tell").await;
    let (second, more) = forked(&manager, "tell").await;
    told.extend(more);
    for (at, said) in told.iter().enumerate() {
        check_own(at % SERVERS, said);
    }
    // The same server again is another process, and no chance is the same in two.
    let mut seen = HashMap::new();
    for round in 0..2 {
        if round == 1 {
            told = ask(&first, "tell").await;
            told.extend(ask(&second, "tell").await);
        }
        for (at, said) in told.iter().enumerate() {
            for (nth, number) in said["chance"].as_array().unwrap().iter().enumerate() {
                // The key of multiprocessing is one for each process.
                let round = if nth == 11 { 0 } else { round };
                let before = seen.insert((nth, number.to_string()), (at, round));
                assert!(
                    before.is_none_or(|before| before == (at, round)),
                    "{nth}: {number}: {before:?} {at}"
                );
            }
        }
    }
    let pipes: Vec<&str> =
        told.iter().flat_map(|said| said["files"].as_array().unwrap()).filter_map(Value::as_str).collect();
    assert_eq!(pipes.iter().collect::<BTreeSet<_>>().len(), pipes.len(), "a file of two servers: {pipes:?}");
    assert_eq!(pipes.len(), told.len() * 3, "{pipes:?}");

    let template = lab.template();
    let all: Vec<String> = (0..SERVERS).flat_map(own_words).collect();
    for file in ["environ", "cmdline", "comm"] {
        assert_eq!(words_in(&read(template, file), &all), [""; 0], "{file} of the template");
    }
    // Of a working directory, which the template looks at, the name may be left in memory that is free.
    let all: Vec<String> = (0..SERVERS).flat_map(|number| own_words(number).into_iter().take(3)).collect();
    if let Some(found) = words_in_memory(template.into(), &all) {
        assert_eq!(found, [""; 0], "in the memory of the template");
        for (at, said) in told.iter().enumerate() {
            let pid = said["pid"].as_u64().unwrap();
            let number = at % SERVERS;
            let (own, others): (Vec<String>, Vec<String>) =
                all.iter().cloned().partition(|word| own_words(number).contains(word));
            assert_eq!(words_in_memory(pid, &others).unwrap(), [""; 0], "in the memory of server {number}");
            // The search finds what is there.
            assert_eq!(words_in_memory(pid, &own).unwrap().len(), own.len());
        }
    }
    drop((first, second));
    manager.shutdown().await;
    lab.lab.await_nobody();
    assert_eq!(lab.templates(), [0; 0]);
}

fn check_own(number: usize, said: &Value) {
    let [first, later, variable, folder] = own_words(number);
    let argv = said["argv"].as_array().unwrap();
    assert!(argv[0].as_str().unwrap().ends_with("/teller.py"), "{argv:?}");
    assert_eq!(argv[1..], [json!(first), json!("--x"), json!(later)]);
    let environment = said["environment"].as_object().unwrap();
    assert_eq!(environment["OWN"], *variable);
    let names = environment.keys().filter(|name| name.starts_with("NAME_")).collect::<Vec<_>>();
    assert_eq!(names, [&format!("NAME_{number}")]);
    assert!(!environment.contains_key("TOOLCRIB_TEMPLATE"), "{environment:?}");
    assert_eq!(said["c"][1][0], *variable);
    let lines = |value: &Value| -> BTreeSet<String> {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let of_system: BTreeSet<String> =
        said["environ"].as_str().unwrap().split_terminator('\0').map(str::to_owned).collect();
    let of_python: BTreeSet<String> =
        environment.iter().map(|(name, value)| format!("{name}={}", value.as_str().unwrap())).collect();
    assert_eq!(lines(&said["c"][0]), of_python);
    // Python itself sets this one where no locale is given.
    let added = of_python.difference(&of_system).filter(|line| !line.starts_with("LC_CTYPE=")).count();
    assert!(added == 0 && of_system.is_subset(&of_python), "{of_python:?} {of_system:?}");
    let line: Vec<&str> = said["cmdline"].as_str().unwrap().split_terminator('\0').collect();
    assert_eq!(json!(line), said["orig_argv"]);
    assert_eq!(json!(line[1..]), said["argv"]);
    for cwd in said["cwd"].as_array().unwrap() {
        assert!(cwd.as_str().unwrap().ends_with(&folder), "{cwd}");
    }
    let text = said.to_string();
    for other in (0..SERVERS).filter(|other| *other != number).flat_map(own_words) {
        assert!(!text.contains(&other), "server {number} knows {other}: {text}");
    }
}

fn read(pid: u32, file: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/{file}")).unwrap()
}

fn words_in<'a>(text: &[u8], words: &'a [String]) -> Vec<&'a str> {
    let finds = |word: &&String| text.windows(word.len()).any(|part| part == word.as_bytes());
    words.iter().filter(finds).map(String::as_str).collect()
}

/// Finds those of `words` that are in memory which a process may write to. `None`: its memory may not be read.
fn words_in_memory(pid: u64, words: &[String]) -> Option<Vec<String>> {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/templates/memory.py");
    let pid = pid.to_string();
    let output = Command::new("/usr/bin/python3").args([program, &pid]).args(words).output().unwrap();
    let found = String::from_utf8(output.stdout).unwrap();
    match output.status.code() {
        Some(0) => Some(found.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()),
        Some(2) => None,
        _ => panic!("{}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// Checks that a fork has what many servers use: loops, threads, TLS, processes.
#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_loops_threads_tls_and_processes() {
    let lab = PythonLab::new(&[]);
    let servers = ["one", "two", "three"].map(|name| lab.server(name, "worker.py", &[]));
    let manager = lab.manager(servers).await;
    let ordinary = ask(&manager.lend(toolcrib::manager::Borrower::Task), "work").await;
    let (loan, told) = forked(&manager, "work").await;
    for (said, ordinary) in told.iter().chain(&ask(&loan, "work").await).zip(ordinary.iter().cycle()) {
        let squares = json!([0, 1, 4, 9, 16]);
        assert_eq!(
            (&said["threads"], &said["tls"], &said["child"]),
            (&squares, &json!(true), &json!("child\n"))
        );
        assert_eq!(said["processes"], json!([squares, squares, squares]));
        assert_ne!(said["pid"], ordinary["pid"]);
    }
}

#[toolcrib_testing::requires(guard, numpy)]
#[tokio::test(flavor = "multi_thread")]
async fn a_template_imports_numpy_and_forks_draw_numbers_anew() {
    let lab = PythonLab::with_numpy();
    let manager = lab.manager(servers_on_numpy(&lab)).await;
    let ordinary = ask(&manager.lend(toolcrib::manager::Borrower::Task), "draw").await;
    let (loan, mut told) = forked(&manager, "draw").await;
    told.extend(ask(&loan, "draw").await);
    let mut seen = BTreeSet::new();
    for said in &told {
        assert_eq!((&said["was_imported"], &said["product"]), (&json!(true), &ordinary[0]["product"]));
        for number in said["chance"].as_array().unwrap() {
            assert!(seen.insert(number.to_string()), "the same number in two servers: {told:?}");
        }
    }
}

#[toolcrib_testing::requires(guard, numpy)]
#[tokio::test(flavor = "multi_thread")]
async fn a_seed_that_an_import_gives_numpy_holds_in_forks() {
    let lab = PythonLab::with_numpy();
    std::fs::write(lab.site().join("seeds_numpy.py"), "import numpy\nnumpy.random.seed(42)\n").unwrap();
    let manager = lab.manager(servers_on_numpy(&lab)).await;
    let ordinary = ask(&manager.lend(toolcrib::manager::Borrower::Task), "draw").await;
    let (_loan, told) = forked(&manager, "draw").await;
    assert!(told.iter().all(|said| said["was_imported"] == true), "{told:?}");
    for said in told.iter().chain(&ordinary) {
        assert_eq!(said["chance"][0], 0.374_540_118_847_362_5, "{said}");
    }
}

/// Three of a task's own.
fn servers_on_numpy(lab: &PythonLab) -> [ServerConfig; 3] {
    ["one", "two", "three"].map(|name| {
        let mut server = lab.server(name, "arrays.py", &[]);
        if let Endpoint::Stdio(child) = &mut server.endpoint {
            // With threads of its own at the import, numpy is left out of a template.
            child.set_env("OPENBLAS_NUM_THREADS", "1");
        }
        server
    })
}
