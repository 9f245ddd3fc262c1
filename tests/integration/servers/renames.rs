//! `tools.rename`: other names for tools, the same everywhere.

use std::fs;

use serde_json::{Value, json};
use toolcrib::{config::ToolRenames, tool::ToolName};

use crate::support::{
    FIXTURE, Lab,
    crib::Crib,
    manager,
    program::{Bench, code, err, out},
    say, within,
};

/// `say` is the fixture's `echo`, and `echo` its `pid`. All other rules have the server's own names.
const RENAMED: &str = r#"
[servers.fix]
command = FIXTURE
[servers.fix.tools]
rename = { echo = "say", pid = "echo" }
deny = ["env"]
timeout = { echo = "9s" }
[servers.fix.result_filter]
deny_args = [{ tool = "echo", arg = "text", match = "forbidden" }]
"#;

fn names(tools: &Value) -> Vec<&str> {
    let tools = tools["servers"][0]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
fn renamed_tools_are_called_by_their_new_names() {
    let crib = Crib::new(RENAMED);
    for daemon in [false, true] {
        if daemon {
            crib.ok(&["up", "-d"]);
        }
        let tools: Value = serde_json::from_str(&crib.ok(&["--json", "tools"])).unwrap();
        let listed = names(&tools);
        assert_eq!(&listed[..2], ["say", "effect"], "in the server's order");
        assert!(
            listed.contains(&"echo") && !listed.contains(&"pid") && !listed.contains(&"env"),
            "{listed:?}"
        );
        let first = &tools["servers"][0]["tools"][0];
        assert_eq!((&first["renamed_from"], &first["visible_name"]), (&json!("echo"), &json!("fix__say")));
        assert_eq!(crib.ok(&["call", "fix.say", "text=hi"]), "hi");
        assert!(crib.ok(&["call", "fix.echo"]).parse::<u32>().is_ok(), "it is `pid` now");
        let old = crib.run(&["call", "fix.pid"]);
        assert_eq!(code(&old), 6, "{}", err(&old));
        let refused = crib.run(&["call", "fix.say", "text=forbidden"]);
        assert!(err(&refused).contains("fix.say"), "by the rule for `echo`: {}", err(&refused));
        assert_ne!(code(&refused), 0);
        let mistyped = crib.run(&["call", "fix.sayy", "text=hi"]);
        assert!(err(&mistyped).contains("did you mean `say`?"), "{}", err(&mistyped));
    }
}

#[test]
fn models_and_results_have_the_new_names() {
    let bench = Bench::new(&format!("{RENAMED}[llm]\nmodel = \"script:model.toml\"\n"));
    let script = r#"
        [[steps]]
        when = { role = "user" }
        calls = [{ tool = "fix__say", args = { text = "from the tool" } }]
        [[steps]]
        say = "{{last}}"
    "#;
    bench.file("model.toml", script);
    let run = bench.run(&["--json", "run", "What?"]);
    assert_eq!(code(&run), 0, "{} {}", out(&run), err(&run));
    let folder = fs::read_dir(bench.0.path().join("runs")).unwrap().map(|entry| entry.unwrap().path());
    let folder = folder.filter(|path| path.join("results.jsonl").exists()).collect::<Vec<_>>();
    let results = fs::read_to_string(folder[0].join("results.jsonl")).unwrap();
    let result: Value = serde_json::from_str(results.lines().next().unwrap()).unwrap();
    assert!(result["answer"].as_str().unwrap().contains("from the tool"), "{result}");
    assert!(result["tools"].get("fix.say").is_some(), "{result}");
    let events = fs::read_to_string(folder[0].join("events.jsonl")).unwrap();
    assert!(events.contains("\"say\"") && !events.contains("\"tool\":\"echo\""), "{events}");
}

#[test]
fn the_lockfile_has_the_names_of_the_server() {
    let bench = Bench::new(RENAMED);
    assert_eq!(code(&bench.run(&["lock"])), 0);
    let file = bench.0.path().join("toolcrib.lock");
    let lock = fs::read_to_string(&file).unwrap();
    assert!(
        lock.contains("name = \"echo\"") && lock.contains("name = \"pid\"") && !lock.contains("\"say\""),
        "{lock}"
    );
    let config = fs::read_to_string(bench.0.path().join("servers.toml")).unwrap();
    for edited in [config.replace("\"say\"", "\"speak\""), config.replace("rename = {", "#rename = {")] {
        assert_ne!(edited, config);
        bench.file("servers.toml", &edited);
        let diff = bench.run(&["lock", "--diff"]);
        assert_eq!(code(&diff), 0, "another name is no drift: {} {}", out(&diff), err(&diff));
        assert_eq!(code(&bench.run(&["tools", "--locked"])), 0);
    }
}

#[test]
fn two_tools_of_one_name_are_an_error() {
    let clash = "[servers.fix]\ncommand = FIXTURE\ntools.rename = { echo = \"pid\" }\n";
    let bench = Bench::new(clash);
    let check = bench.run(&["check", "--strict"]);
    assert_eq!(code(&check), 4, "{}", err(&check));
    for words in
        ["two tools of one name", "`pid` and `echo` would both be named `pid`", "servers.fix.tools.deny"]
    {
        assert!(err(&check).contains(words), "{words}: {}", err(&check));
    }
    let left_out = clash.replace("tools.rename", "tools.deny = [\"pid\"]\ntools.rename");
    let bench = Bench::new(&left_out);
    assert_eq!(
        out(&bench.run(&["call", "fix.pid", "text=hi"])).trim(),
        "hi",
        "in place of the one that is denied"
    );
}

#[test]
fn a_rename_of_no_tool_is_a_warning() {
    let bench = Bench::new("[servers.fix]\ncommand = FIXTURE\ntools.rename = { ecko = \"say\" }\n");
    let check = bench.run(&["check"]);
    let text = err(&check);
    assert_eq!(code(&check), 0, "{text}");
    for words in ["servers.toml:3: `servers.fix.tools.rename.ecko`", "no tool `ecko`", "did you mean `echo`?"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_clash_does_not_end_the_server() {
    let lab = Lab::new();
    let lists = |lines: &str| fs::write(lab.file("extra"), lines).unwrap();
    lists("announce");
    let script = format!("tee {} | {FIXTURE} {}", lab.file("sent").display(), lab.flag("extra"));
    let mut server = lab.command("one", "sh", &["-c", &script]);
    server.renames = ToolRenames::new([("echo".to_owned(), ToolName::new("later").unwrap())]);
    let manager = manager([server]).await;
    let tools = manager.toolbox();
    let pid = say(&tools, "one", "pid").await.unwrap();
    let find = |tool: &str| manager.catalog().find("one", tool).map(|entry| entry.tool.own_name().to_owned());
    assert_eq!(find("later").unwrap(), "echo");
    lists("announce\nlater\nbeside");
    let listed = || lab.lines("sent").iter().filter(|line| line.contains("tools/list")).count();
    let before = listed();
    say(&tools, "one", "announce").await.unwrap();
    within("a list with a clash", || listed() > before).await;
    // What is answered after the list was read comes after it.
    say(&tools, "one", "pid").await.unwrap();
    assert!(find("beside").is_err());
    lists("announce\nfresh");
    say(&tools, "one", "announce").await.unwrap();
    within("a list without one", || find("fresh").is_ok()).await;
    assert_eq!(find("later").unwrap(), "echo");
    assert_eq!(say(&tools, "one", "pid").await.unwrap(), pid, "the same process");
    manager.shutdown().await;
}
