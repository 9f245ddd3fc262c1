//! `toolcrib install`: the entry for toolcrib in the configuration of MCP clients.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Output};

use serde_json::Value;

use crate::support::program::{Bench, code, err, out};

const CONFIG: &str = "[servers.calc]\nbuiltin = \"calc\"\n[servers.time]\nbuiltin = \"time\"\n";

/// The program, with a home folder of its own.
fn install(bench: &Bench, arguments: &[&str]) -> Output {
    let home = bench.0.path().join("home");
    let mut command = bench.command(&[&["install"], arguments].concat());
    command
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("CODEX_HOME")
        .env_remove("CLAUDE_CONFIG_DIR");
    command.output().unwrap()
}

fn read(bench: &Bench, path: &str) -> Value {
    let text = fs::read_to_string(bench.0.path().join(path)).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn an_entry_is_written_shown_and_removed() {
    let bench = Bench::new(CONFIG);
    let path = "home/.cursor/mcp.json";
    let printed = install(&bench, &["cursor", "--print"]);
    let text: Value = serde_json::from_str(&out(&printed)).unwrap();
    assert!(!bench.0.path().join("home").exists(), "nothing is written");
    let added = install(&bench, &["cursor"]);
    assert_eq!(code(&added), 0, "{}", err(&added));
    assert!(
        err(&added).contains("Added `toolcrib` to ") && err(&added).contains("restart Cursor"),
        "{}",
        err(&added)
    );
    let file = read(&bench, path);
    assert_eq!(file, text);
    let entry = &file["mcpServers"]["toolcrib"];
    let config = bench.0.path().canonicalize().unwrap().join("servers.toml");
    assert_eq!(entry["command"], env!("CARGO_BIN_EXE_toolcrib"));
    assert_eq!(entry["args"][0], "connect");
    assert_eq!(fs::canonicalize(entry["args"][2].as_str().unwrap()).unwrap(), config);
    let again = install(&bench, &["cursor", "--json"]);
    let report: Value = serde_json::from_str(&out(&again)).unwrap();
    assert_eq!((report["change"].as_str(), &report["backup"]), (Some("unchanged"), &Value::Null));

    let listed: Value = serde_json::from_str(&out(&install(&bench, &["--json"]))).unwrap();
    let found: Vec<&str> = listed["clients"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|client| client["found"] == true)
        .map(|client| client["client"].as_str().unwrap())
        .collect();
    assert_eq!(found, ["cursor"], "{listed}");
    let table = out(&install(&bench, &[]));
    assert!(table.lines().any(|line| line.starts_with("cursor           yes    yes    ")), "{table}");

    let removed = install(&bench, &["cursor", "--remove"]);
    assert!(err(&removed).contains("which is as it was before"), "{}", err(&removed));
    assert!(!bench.0.path().join(path).exists());
    assert!(err(&install(&bench, &["cursor", "--remove"])).contains("there is no `toolcrib`"));
}

/// The entry of the file starts a program that speaks MCP, in any folder.
#[test]
fn the_command_of_an_entry_serves_tools() {
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Command, Stdio},
    };
    let bench = Bench::new(CONFIG);
    assert_eq!(code(&install(&bench, &["claude-code", "--project", "--server", "calc"])), 0);
    let entry = read(&bench, ".mcp.json")["mcpServers"]["toolcrib-calc"].clone();
    assert_eq!(entry["type"], "stdio");
    let arguments: Vec<&str> =
        entry["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    let runtime = tempfile::tempdir().unwrap();
    fs::set_permissions(runtime.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let state = bench.0.path().join("state");
    let environment = [
        ("XDG_RUNTIME_DIR", runtime.path()),
        ("XDG_CACHE_HOME", runtime.path()),
        ("XDG_STATE_HOME", state.as_path()),
    ];
    let mut client = Command::new(entry["command"].as_str().unwrap())
        .args(&arguments)
        .current_dir("/")
        .envs(environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = client.stdin.take().unwrap();
    for line in [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#,
    ] {
        writeln!(stdin, "{line}").unwrap();
    }
    let lines = BufReader::new(client.stdout.take().unwrap()).lines().map_while(Result::ok);
    let answers = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
    let listed = answers.into_iter().find(|answer| answer["id"] == 2).unwrap();
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert!(tools.iter().any(|tool| tool["name"] == "evaluate"), "{listed}");
    drop(stdin);
    client.wait().unwrap();
    let down = bench.command(&["down"]).envs(environment).output().unwrap();
    assert_eq!(code(&down), 0, "{}", err(&down));
}

/// An address is all that a client needs that finds out the rest, and a token is never written into its file.
#[test]
fn an_entry_with_an_address_says_what_is_missing() {
    let token = "[gateway]\ntoken = \"planted-token-0123456789\"\n";
    let oauth =
        "oauth = { issuer = \"https://login.example.com\" }\npublic_url = \"https://tools.example.com\"\n";
    let (near, far) = ("http://localhost:7171/mcp", "https://tools.example.com/mcp/calc");
    for (gateway, url, wants) in [
        (String::new(), near, false),
        (token.to_owned(), near, true),
        (token.to_owned(), "http://127.0.0.1:7172/mcp", false),
        (format!("{token}{oauth}"), near, false),
        (format!("[gateway]\n{oauth}"), far, false),
        (format!("{token}public_url = \"https://tools.example.com\"\n"), far, true),
    ] {
        let bench = Bench::new(&format!("{CONFIG}{gateway}"));
        for (client, path, line) in [
            ("cursor", "home/.cursor/mcp.json", "\"headers\": { \"Authorization\": \"Bearer TOKEN\" }"),
            ("codex", "home/.codex/config.toml", "http_headers = { Authorization = \"Bearer TOKEN\" }"),
        ] {
            let added = install(&bench, &[client, "--url", url]);
            assert_eq!(code(&added), 0, "{}", err(&added));
            let told = err(&added).split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(told.contains("the gateway wants a token"), wants, "{gateway} {url}: {told}");
            assert_eq!(told.contains(line), wants, "{told}");
            let file = fs::read_to_string(bench.0.path().join(path)).unwrap();
            assert!(file.contains(url) && !file.contains("uthorization"), "{file}");
            assert!(!file.contains("planted") && !told.contains("planted"), "{file} {told}");
        }
    }
}

#[test]
fn mistakes_and_conflicts_change_nothing() {
    let bench = Bench::new(CONFIG);
    fs::create_dir_all(bench.0.path().join("home/.codeium/windsurf")).unwrap();
    let path = "home/.codeium/windsurf/mcp_config.json";
    let other = r#"{"mcpServers": {"toolcrib": {"command": "old", "args": ["--key", "planted-key"], "env": {"KEY": "planted-key"}}}}"#;
    bench.file(path, other);
    let refused = install(&bench, &["windsurf"]);
    assert_eq!(code(&refused), 2);
    assert!(err(&refused).contains("has another entry `toolcrib`") && err(&refused).contains("--force"));
    let diff = out(&refused);
    assert!(
        diff.contains("-       \"command\": \"old\",") && diff.contains("+       \"command\": \"/"),
        "{diff}"
    );
    assert!(!diff.contains("planted-key"), "{diff}");
    assert_eq!(fs::read_to_string(bench.0.path().join(path)).unwrap(), other);
    let forced = install(&bench, &["windsurf", "--force", "--url", "http://127.0.0.1:7171/mcp"]);
    assert!(code(&forced) == 0 && err(&forced).contains("mcp_config.json.bak-toolcrib"), "{}", err(&forced));
    assert_eq!(read(&bench, path)["mcpServers"]["toolcrib"]["serverUrl"], "http://127.0.0.1:7171/mcp");

    for (arguments, problem) in [
        (&["curser"][..], "did you mean `cursor`?"),
        (&["windsurf", "--project"], "Windsurf has no configuration of a project"),
        (&["claude-desktop", "--url", "http://h/mcp"], "Claude Desktop takes no address"),
        (&["cursor", "--server", "clac"], "did you mean `calc`?"),
        (&["cursor", "--url", "h/mcp"], "must be an address"),
        (&["cursor", "--name", "a b"], "must have 1 to 64 letters"),
        (&["cursor", "--profile", "x"], "a client cannot use a profile"),
    ] {
        let refused = install(&bench, arguments);
        assert!(code(&refused) == 2 && err(&refused).contains(problem), "{arguments:?}: {}", err(&refused));
    }
    fs::create_dir_all(bench.0.path().join("home/.gemini")).unwrap();
    bench.file("home/.gemini/settings.json", "{\n  \"a\": \n}");
    let broken = install(&bench, &["gemini-cli"]);
    assert!(code(&broken) == 2 && err(&broken).contains("settings.json:3:1: "), "{}", err(&broken));
    assert!(!bench.0.path().join("home/.cursor").exists());
}

#[toolcrib_testing::requires(root, setpriv)]
#[test]
fn a_folder_that_cannot_be_written_is_left_alone() {
    let bench = Bench::new(CONFIG);
    let home = bench.0.path().join("home");
    fs::create_dir_all(home.join(".cursor")).unwrap();
    bench.file("home/.cursor/mcp.json", "{}\n");
    for folder in [bench.0.path(), &home] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let program = env!("CARGO_BIN_EXE_toolcrib");
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program, "install", "cursor"]);
    let refused = command.current_dir(bench.0.path()).env("HOME", &home).output().unwrap();
    let told = err(&refused);
    assert!(
        code(&refused) == 1 && told.contains("cannot write") && told.contains("ermission denied"),
        "{told}"
    );
    assert_eq!(fs::read_to_string(home.join(".cursor/mcp.json")).unwrap(), "{}\n");
    assert_eq!(fs::read_dir(home.join(".cursor")).unwrap().count(), 1);
}
