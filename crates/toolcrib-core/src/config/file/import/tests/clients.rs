//! The forms in which MCP clients write servers: what `install` writes is read back, and so is what others write.

use super::*;
use crate::config::{ClientEntry, McpClient};

/// The text that `import` makes of a file, and its notes.
fn imported(file: &str, text: &str) -> (String, Vec<String>) {
    let project = Project::new(&[(file, text)]);
    import_toml(file, &project.env(&[])).unwrap()
}

#[test]
fn every_client_is_read_back_as_it_was_installed() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    let env = Env::new(&home, [("HOME", home.to_str().unwrap()), ("PATH", "/bin")]);
    for client in McpClient::ALL {
        let command = ClientEntry::Command {
            program: "/bin/crib".into(),
            arguments: vec!["connect".into(), "$x".into()],
        };
        for entry in [command, ClientEntry::Url("http://127.0.0.1:7171/mcp".to_owned())] {
            // Claude Desktop takes no address.
            let Ok(written) = client.entry(&entry) else { continue };
            let text = match client.is_toml() {
                true => {
                    let servers = serde_json::json!({"toolcrib": written});
                    toml::to_string(&serde_json::json!({client.table: servers})).unwrap()
                }
                false => serde_json::json!({client.table: {"toolcrib": written}}).to_string(),
            };
            let file = client.user_file(&env).unwrap();
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, text).unwrap();
            // By its path, and by the client's name.
            for source in [file.to_str().unwrap(), client.name] {
                let (text, notes) = import_toml(source, &env).unwrap();
                assert_eq!(notes, [""; 0], "{}: {text}", client.name);
                let config = Config::parse(&text, None, &home, &env).unwrap();
                let shown = match &server(&config, "toolcrib").endpoint {
                    Endpoint::Stdio(child) => format!("{} {:?}", child.command.display(), child.args),
                    Endpoint::Http(remote) => remote.url.clone(),
                    Endpoint::Builtin { .. } | Endpoint::Local(_) => String::new(),
                };
                let wanted = match &entry {
                    ClientEntry::Command { .. } => r#"/bin/crib ["connect", "$x"]"#,
                    ClientEntry::Url(url) => url,
                };
                assert_eq!(shown, wanted, "{}: {text}", client.name);
            }
            fs::remove_file(&file).unwrap();
        }
    }
}

#[test]
fn transports_are_read_in_every_spelling() {
    let file = r#"{"mcpServers": {
        "nested": {"transport": {"type": "http", "url": "http://h/mcp", "headers": {"x-token": "${T}"}}},
        "local": {"type": "local", "command": "python3", "args": ["s.py"], "tools": ["*"]},
        "upper": {"type": "HTTP", "url": "http://h/mcp"},
        "streamable": {"type": "streamable", "url": "http://h/mcp"},
        "stream": {"transport": "streamable_http", "serverUrl": "http://h/mcp"},
        "remote": {"type": "remote", "url": "http://h/mcp", "enabled": true},
        "sse": {"transportType": "SSE", "url": "http://h/sse"},
        "both": {"type": "stdio", "command": "x", "url": "http://h/mcp"},
        "empty": {"type": "streamableHttp", "isActive": true, "baseUrl": "http://h/mcp", "command": ""},
        "ws": {"type": "ws", "url": "ws://h/mcp"},
        "odd": {"type": 3, "url": "http://h/mcp"}
    }}"#;
    let (text, notes) = imported("x.json", file);
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("[servers.")).collect();
    assert_eq!(
        names,
        ["nested]", "local]", "upper]", "streamable]", "stream]", "remote]", "sse]", "both]", "empty]"],
        "{text}"
    );
    assert!(
        text.contains("[servers.nested]\nurl = \"http://h/mcp\"\nheaders = { x-token = \"${T}\" }"),
        "{text}"
    );
    assert!(text.contains("[servers.sse]\ntransport = \"sse\"\nurl = \"http://h/sse\""), "{text}");
    assert!(text.contains("[servers.both]\ncommand = \"x\"\n\n"), "{text}");
    let supported = r#"(supported are "stdio", "http" and "sse")"#;
    assert_eq!(
        notes,
        [
            "x.json: both.url: ignored: by its transport it is started by a command".to_owned(),
            format!(
                "ws: left out: x.json:11: `mcpServers.ws.type`: the transport \"ws\" is not supported {supported}"
            ),
            format!(
                "odd: left out: x.json:12: `mcpServers.odd.type`: expected a transport as a string, found an integer \
                 {supported}"
            ),
        ]
    );
}

#[test]
fn variables_of_gemini_are_variables() {
    let file = r#"{"mcpServers": {
        "s": {"command": "sh", "args": ["-c", "echo $x"], "env": {"API_KEY": "$MY_KEY", "PORT": 3000, "NONE": null}},
        "r": {"httpUrl": "http://h/mcp", "url": "http://h/sse", "headers": {"Authorization": "Bearer $MY_KEY"}}
    }}"#;
    let (text, notes) = imported(".gemini/settings.json", file);
    assert!(text.contains(r#"env = { API_KEY = "${MY_KEY}", PORT = "3000" }"#), "{text}");
    assert!(text.contains(r#"args = ["-c", "echo ${x:-$x}"]"#), "{text}");
    assert!(text.contains(r#"headers = { Authorization = "Bearer ${MY_KEY}" }"#), "{text}");
    assert_eq!(notes, [".gemini/settings.json: r.url: ignored: `httpUrl` wins"]);
    // Elsewhere it is text, which is told; it is no secret.
    let other = r#"{"mcpServers": {"s": {"command": "sh", "env": {"API_KEY": "$MY_KEY_OF_MINE"}}}}"#;
    let (text, notes) = imported("mcp.json", other);
    assert!(text.contains(r#"env = { API_KEY = "$MY_KEY_OF_MINE" }"#), "{text}");
    let note = "mcp.json: s.env.API_KEY: $MY_KEY_OF_MINE is not expanded: write ${MY_KEY_OF_MINE} if it is a variable";
    assert_eq!(notes, [note]);
    // What other programs run or read is told.
    for (file, text, note) in [
        (
            "crush.json",
            r#"{"mcp": {"s": {"command": "x", "env": {"K": "$(pass show k)"}}}}"#,
            "`$(...)` is not run",
        ),
        (
            "opencode.json",
            r#"{"mcp": {"s": {"type": "local", "command": ["x"], "environment": {"K": "{file:~/k}"}}}}"#,
            "`{file",
        ),
        (
            ".qwen/settings.json",
            r#"{"mcpServers": {"s": {"command": "x", "env": {"K": "$(pass show k)"}}}}"#,
            "`$(...)` is not run",
        ),
    ] {
        let (_, notes) = imported(file, text);
        assert!(notes.iter().any(|told| told.contains(note)), "{file}: {notes:?}");
    }
}

#[test]
fn tables_of_other_clients_are_found() {
    for (file, text, line) in [
        (
            ".zed/settings.json",
            r#"{"context_servers": {"s": {"source": "custom", "command": {"path": "x", "args": ["a"], "env": {"K": "v"}}}}}"#,
            "[servers.s]\ncommand = \"x\"\nargs = [\"a\"]\nenv = { K = \"v\" }\n",
        ),
        (
            "opencode.json",
            r#"{"mcp": {"timeout": 5, "s": {"type": "local", "command": ["npx", "-y", "p"], "environment": {"K": "{env:KEY}"}, "timeout": 5000}}}"#,
            "[servers.s]\ncommand = \"npx\"\nargs = [\"-y\", \"p\"]\nenv = { K = \"${KEY}\" }\nstartup_timeout = \"5s\"\n",
        ),
        ("settings.json", r#"{"amp.mcpServers": {"s": {"command": "x"}}}"#, "[servers.s]\ncommand = \"x\"\n"),
        (
            "settings.json",
            r#"{"mcp": {"inputs": [], "servers": {"s": {"command": "x"}}}}"#,
            "[servers.s]\ncommand = \"x\"\n",
        ),
        (
            "x.json",
            r#"{"experimental": {"modelContextProtocolServers": [{"transport": {"type": "stdio", "command": "x", "args": ["a"]}}]}}"#,
            "[servers.server]\ncommand = \"x\"\nargs = [\"a\"]\n",
        ),
        (
            "x.json",
            r#"{"s": {"command": "x"}, "t": {"url": "http://h/mcp"}}"#,
            "[servers.s]\ncommand = \"x\"\n\n[servers.t]\nurl = \"http://h/mcp\"\n",
        ),
        ("one.json", r#"{"command": "x", "args": []}"#, "[servers.one]\ncommand = \"x\"\nargs = []\n"),
        (
            "config.yaml",
            "extensions:\n  s:\n    type: stdio\n    cmd: x\n    args: [a]\n    envs: {K: v}\n    env_keys: [TOKEN]\n    timeout: 300\n    enabled: false\n",
            "[servers.s]\ncommand = \"x\"\nargs = [\"a\"]\nenv = { K = \"v\" }\ninherit_env = [\"TOKEN\"]\ncall_timeout = \"5m\"\nenabled = false\n",
        ),
        (
            "config.yaml",
            "mcpServers:\n  - name: s\n    command: x\n    env:\n      K: ${{ secrets.KEY }}\n",
            "[servers.s]\ncommand = \"x\"\nenv = { K = \"${KEY}\" }\n",
        ),
        (
            "config.toml",
            "[[mcp_servers]]\nname = \"s\"\ntransport = \"http\"\nurl = \"http://h/mcp\"\n",
            "[servers.s]\nurl = \"http://h/mcp\"\n",
        ),
    ] {
        let (toml, _) = imported(file, text);
        assert!(toml.contains(line), "{text}:\n{toml}");
    }
    // What is built into Goose cannot be started here.
    let (toml, notes) =
        imported("config.yaml", "extensions:\n  dev:\n    type: builtin\n    enabled: true\n");
    assert!(!toml.contains("\n[servers"), "{toml}");
    assert!(notes[0].starts_with("dev: left out: config.yaml:3: `extensions.dev.type`"), "{notes:?}");
}

#[test]
fn projects_of_claude_code_are_those_of_the_folder() {
    let project = Project::new(&[]);
    let text = serde_json::json!({
        "numStartups": 5, "mcpServers": {"user": {"command": "u"}, "mine": {"command": "of-user"}},
        "projects": {
            project.path().to_str().unwrap(): {"mcpServers": {"mine": {"command": "m"}}},
            "/other": {"mcpServers": {"theirs": {"command": "t"}}, "history": []},
        }
    });
    fs::write(project.path().join(".claude.json"), text.to_string()).unwrap();
    let (toml, notes) = import_toml(".claude.json", &project.env(&[])).unwrap();
    assert!(toml.contains("[servers.mine]\ncommand = \"m\"") && toml.contains("[servers.user]"), "{toml}");
    assert!(!toml.contains("theirs]") && !toml.contains("of-user"), "{toml}");
    assert_eq!(
        notes,
        [
            ".claude.json: left out: theirs, which belong to the project /other; import them in that folder",
            ".claude.json: `mcpServers.mine` is left out: `projects.PATH.mcpServers.mine` has its name",
        ]
        .map(|note| note.replace("PATH", project.path().to_str().unwrap()))
    );
}

#[test]
fn what_has_no_effect_is_said() {
    let file = r#"{"mcpServers": {"s": {"command": "x", "description": "d", "trust": true, "oauth": {"a": 1},
        "enabledTools": ["a"], "env": ["K=v", {"name": "L", "value": "w"}], "unknown": 1}, "t": 5}}"#;
    let (text, notes) = imported("x.json", file);
    assert!(text.contains("tools = { allow = [\"a\"] }\nenv = { K = \"v\", L = \"w\" }"), "{text}");
    let start = |note: &String| note.split(" (").next().unwrap().to_owned();
    assert_eq!(
        notes.iter().map(start).collect::<Vec<_>>(),
        [
            "x.json: s.description: ignored: it has no effect here",
            "x.json: s.trust: ignored: toolcrib asks nobody before a call",
            "x.json: s.oauth: ignored: `toolcrib login s` logs in, if the server asks for it",
            "x.json: s.unknown: not understood, ignored",
            "t: left out: x.json:2: `mcpServers.t`: expected a table of keys such as `command` or `url`, found an integer",
        ]
    );
}

#[test]
fn what_stands_in_the_wrong_place_costs_itself_alone() {
    let (text, notes) = imported(
        "mcp.json",
        r#"{"mcpServers":{
            "case":{"serverURL":"https://h/mcp"},
            "numbers":{"command":"x","args":["--port",3000,true],"disabled":"true","timeout":"30"},
            "words":{"command":"x","args":"--foo 'a b'"},
            "line":{"command":"npx -y foo --bar"},
            "headers":{"command":"x","headers":{"A":"b"}},
            "args":{"url":"https://h","args":["x"],"env":{}},
            "list":{"command":"x","env":["A=b","C"]},
            "lines":{"url":"https://h","headers":["A: b=c"]},
            "token":{"url":"https://h","bearer_token":"${TOKEN}"}}}"#,
    );
    for wanted in [
        "[servers.case]\nurl = \"https://h/mcp\"",
        "args = [\"--port\", \"3000\", \"true\"]\nenabled = false\ncall_timeout = \"30s\"",
        "[servers.words]\ncommand = \"x\"\nargs = [\"--foo\", \"a b\"]",
        "[servers.line]\ncommand = \"npx\"\nargs = [\"-y\", \"foo\", \"--bar\"]",
        "[servers.headers]\ncommand = \"x\"\n",
        "[servers.args]\nurl = \"https://h\"\n",
        "[servers.list]\ncommand = \"x\"\nenv = { A = \"b\" }",
        "headers = { A = \"b=c\" }",
        "headers = { Authorization = \"Bearer ${TOKEN}\" }",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    for wanted in [
        "words.args: is a text",
        "line.command: is a whole command line",
        "headers.headers: ignored",
        "args.args: ignored",
        "list.env: 1 of its entries",
    ] {
        assert_eq!(notes.iter().filter(|note| note.contains(wanted)).count(), 1, "{wanted}: {notes:?}");
    }
    assert!(!notes.iter().any(|note| note.contains("left out: ") || note.contains("args.env")), "{notes:?}");
}

#[test]
fn commands_of_windows_are_those_behind_its_shells() {
    let (text, notes) = imported(
        "mcp.json",
        r#"{"mcpServers":{
            "cmd":{"command":"cmd","args":["/c","npx","-y","x"]},
            "line":{"command":"C:\\Windows\\System32\\cmd.exe","args":["/d","/s","/C","npx -y \"a b\""]},
            "shell":{"command":"powershell","args":["-NoProfile","-Command","uvx y"]},
            "npx":{"command":"npx.cmd","args":["-y","x"],"cwd":"C:\\x"}}}"#,
    );
    for wanted in [
        "[servers.cmd]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]",
        "[servers.line]\ncommand = \"npx\"\nargs = [\"-y\", \"a b\"]",
        "[servers.shell]\ncommand = \"uvx\"\nargs = [\"y\"]",
        "[servers.npx]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    for wanted in ["`cmd` is a shell of Windows", "`npx.cmd` is called `npx` here", "npx.cwd: ignored"] {
        assert!(notes.iter().any(|note| note.contains(wanted)), "{wanted}: {notes:?}");
    }
    assert!(!text.contains("cwd = "), "{text}");
}

#[test]
fn nothing_of_a_file_is_left_out_without_a_word() {
    let (_, notes) = imported(
        "settings.json",
        r#"{"mcp":{"a":{"type":"local","command":["x"]},"b":{"enabled":false},"allowed":["a"]}}"#,
    );
    for wanted in ["`mcp.b` is left out", "`mcp.allowed` (a): ignored"] {
        assert!(notes.iter().any(|note| note.contains(wanted)), "{wanted}: {notes:?}");
    }
    let (text, _) = imported("list.json", r#"[{"name":"a","command":"x"},{"name":"b","url":"https://h"}]"#);
    assert!(text.contains("[servers.a]") && text.contains("[servers.b]"), "{text}");
    let (text, _) = imported("x.yaml", "mcpServers:\n  a:\n    url: https://h\n    headers: {X: y, Y: no}\n");
    assert!(text.contains("headers = { X = \"y\", Y = \"no\" }"), "{text}");
    let wide: Vec<u8> = "\u{feff}{\"mcpServers\":{\"a\":{\"command\":\"x\"}}}"
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let project = Project::new(&[("wide.json", "")]);
    fs::write(project.env(&[]).folder().join("wide.json"), wide).unwrap();
    assert!(import_toml("wide.json", &project.env(&[])).unwrap().0.contains("[servers.a]"));
}
