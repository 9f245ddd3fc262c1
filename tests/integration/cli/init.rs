//! `toolcrib init`: a first servers.toml, of what is on the machine.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};

use crate::support::program::{Bench, code, err, out};

/// A folder without a configuration.
fn empty() -> Bench {
    let bench = Bench::new("");
    fs::remove_file(bench.0.path().join("servers.toml")).unwrap();
    bench
}

/// The program, with a home folder of its own.
fn run(bench: &Bench, arguments: &[&str]) -> Output {
    let mut command = bench.command(arguments);
    command.env("HOME", bench.0.path().join("home"));
    for variable in ["XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"] {
        command.env_remove(variable);
    }
    command.output().unwrap()
}

fn write(bench: &Bench, path: &str, text: &str) {
    let path = bench.0.path().join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn config(folder: &Path) -> String {
    fs::read_to_string(folder.join("servers.toml")).unwrap()
}

#[test]
fn without_clients_the_file_works_at_once() {
    let bench = empty();
    let written = run(&bench, &["init"]);
    let told = err(&written);
    assert_eq!(code(&written), 0, "{told}");
    assert!(
        told.contains("Found no servers")
            && told.contains("with 3 servers")
            && told.contains("Next toolcrib check"),
        "{told}"
    );
    let check = run(&bench, &["check", "--strict"]);
    assert_eq!(code(&check), 0, "{}", err(&check));
    let before = config(bench.0.path());
    let again = run(&bench, &["init"]);
    assert!(
        code(&again) == 2 && err(&again).contains("is there already") && err(&again).contains("toolcrib add")
    );
    assert_eq!(config(bench.0.path()), before);
    // A server that is added stands with the others.
    assert_eq!(code(&run(&bench, &["add", "web", "--builtin", "fetch"])), 0);
    let edited = config(bench.0.path());
    assert!(edited.find("[servers.web]").unwrap() < edited.find("# A program, and").unwrap(), "{edited}");
}

#[test]
fn servers_of_clients_are_imported_without_their_secrets() {
    let bench = empty();
    let files = json!({"command": "sh", "args": ["-c", "exit 1"], "env": {"API_KEY": "planted-abcdefgh"}});
    let client = |servers: Value| json!({"mcpServers": servers}).to_string();
    write(
        &bench,
        "home/.cursor/mcp.json",
        &client(json!({"files": files, "web": {"url": "https://h.example/mcp"}})),
    );
    // The same servers at another client, and one that cannot be read.
    write(&bench, "home/.claude.json", &client(json!({"files": files})));
    write(&bench, "home/.gemini/settings.json", "{\"mcpServers\": ");
    write(&bench, ".mcp.json", &client(json!({"own": {"command": "sh"}})));
    let written = run(&bench, &["init"]);
    let told = err(&written);
    assert_eq!(code(&written), 0, "{told}");
    for words in [
        "1 server: own",
        "2 servers: files, web",
        "not imported",
        "Gemini CLI is left out",
        "with 3 servers",
        "Secrets none",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let text = config(bench.0.path());
    assert!(text.contains("import = [\n    \".mcp.json\", # own\n    \"cursor\", # files, web\n]"), "{text}");
    assert!(!text.contains("planted") && !told.contains("planted"), "{text} {told}");
    let listed: Value = serde_json::from_str(&out(&run(&bench, &["servers", "--json"]))).unwrap();
    let names: Vec<&str> =
        listed["servers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["own", "files", "web"]);

    // One source alone, into another folder; and none.
    fs::create_dir(bench.0.path().join("other")).unwrap();
    let chosen = run(&bench, &["--json", "init", "other", "--from", "claude-code"]);
    let document: Value = serde_json::from_str(&out(&chosen)).unwrap();
    assert_eq!((&document["schema"], &document["servers"]), (&json!(1), &json!(["files"])));
    assert!(config(&bench.0.path().join("other")).contains("import = [\n    \"claude-code\", # files\n]"));
    let builtin = run(&bench, &["init", "none.toml", "--builtin"]);
    assert!(code(&builtin) == 0 && err(&builtin).contains("toolcrib check --config "), "{}", err(&builtin));
    for (source, words) in [("zed", "`zed` has no servers"), ("nothing.json", "there is no file")] {
        let missing = run(&bench, &["init", "x.toml", "--from", source]);
        assert!(code(&missing) != 0 && err(&missing).contains(words), "{}", err(&missing));
        assert!(!bench.0.path().join("x.toml").exists());
    }
    fs::rename(bench.0.path().join("servers.toml"), bench.0.path().join("toolcrib.toml")).unwrap();
    let both = run(&bench, &["init"]);
    assert!(err(&both).contains("toolcrib.toml is there already"), "{}", err(&both));
}

#[test]
fn the_entry_for_a_configuration_is_no_server_of_it() {
    let bench = Bench::new("[servers.calc]\nbuiltin = \"calc\"\n");
    assert_eq!(code(&run(&bench, &["install", "cursor"])), 0);
    fs::remove_file(bench.0.path().join("servers.toml")).unwrap();
    let written = run(&bench, &["init"]);
    assert!(err(&written).contains("Found no servers"), "{}", err(&written));
    let listed = |text: &str| {
        bench.file("servers.toml", text);
        out(&run(&bench, &["servers"]))
    };
    assert!(!listed("import = [\"cursor\"]\n[servers.time]\nbuiltin = \"time\"\n").contains("connect"));
    // That of another configuration is one.
    bench.file("other.toml", "import = [\"cursor\"]\n");
    let other = run(&bench, &["servers", "--config", "other.toml"]);
    assert!(out(&other).contains("connect"), "{}", err(&other));
}
