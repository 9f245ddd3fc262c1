//! Entries in the files of all clients: what they look like, and what else in a file stays.

use std::{fs, os::unix::fs::PermissionsExt as _};

use serde_json::json;

use super::*;
use crate::config::{ClientEntry, Env};

/// Files with another server, comments and a format of their own.
const JSONC: &str = "// mine\n{\n    \"theme\": \"dark\", // stays\n    \"TABLE\": {\n        \"other\": {\"command\": \"x\"}, // too\n    },\n}\n";
const PLAIN_JSON: &str = "{\"TABLE\":{\"other\":{\"command\":\"x\",\"args\":[]}},\"a\":1}";
const TOML: &str =
    "# mine\nmodel = \"m\"   # stays\n\n[TABLE.other]\ncommand = 'x'\n\n[tui]\ntheme = \"dark\"\n";

fn command() -> ClientEntry {
    let arguments = ["connect", "--config", "/w/servers.toml"].map(str::to_owned).to_vec();
    ClientEntry::Command { program: "/opt/toolcrib".into(), arguments }
}

fn at(client: &'static McpClient, path: &Path) -> Installation {
    Installation::new(client, path, "toolcrib")
}

/// The present text is no draft and no backup of another one.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn each_client_has_its_own_form_of_an_entry() {
    let text = |name: &str, entry: &ClientEntry| {
        let client = McpClient::named(name).unwrap();
        at(client, Path::new("f")).text_of(&client.entry(entry).unwrap())
    };
    let args = json!(["connect", "--config", "/w/servers.toml"]);
    let plain = json!({"command": "/opt/toolcrib", "args": args});
    let typed = json!({"type": "stdio", "command": "/opt/toolcrib", "args": args});
    let url = ClientEntry::Url("http://h/mcp".to_owned());
    for (name, table, local, remote) in [
        ("claude-desktop", "mcpServers", &plain, None),
        ("claude-code", "mcpServers", &typed, Some(json!({"type": "http", "url": "http://h/mcp"}))),
        ("cursor", "mcpServers", &plain, Some(json!({"url": "http://h/mcp"}))),
        ("vscode", "servers", &typed, Some(json!({"type": "http", "url": "http://h/mcp"}))),
        ("zed", "context_servers", &plain, Some(json!({"url": "http://h/mcp"}))),
        ("windsurf", "mcpServers", &plain, Some(json!({"serverUrl": "http://h/mcp"}))),
        ("gemini-cli", "mcpServers", &plain, Some(json!({"httpUrl": "http://h/mcp"}))),
    ] {
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(read(&text(name, &command())), json!({table: {"toolcrib": local}}), "{name}");
        match remote {
            Some(remote) => {
                assert_eq!(read(&text(name, &url)), json!({table: {"toolcrib": remote}}), "{name}");
            }
            None => {
                let refused = McpClient::named(name).unwrap().entry(&url).unwrap_err();
                assert!(refused.help().unwrap().contains("leave out --url"), "{refused}");
            }
        }
    }
    let codex = "[mcp_servers.toolcrib]\ncommand = \"/opt/toolcrib\"\nargs = [\"connect\", \"--config\", \"/w/servers.toml\"]\n";
    assert_eq!(text("codex", &command()), codex);
    assert_eq!(text("codex", &url), "[mcp_servers.toolcrib]\nurl = \"http://h/mcp\"\n");
    let copilot: Value = serde_json::from_str(&text("copilot-cli", &command())).unwrap();
    assert_eq!(copilot["mcpServers"]["toolcrib"]["tools"], json!(["*"]));
    assert!(McpClient::named("cursr").unwrap_err().help().unwrap().contains("did you mean `cursor`?"));
}

/// Written, written again, and removed: with other entries and comments, without any, and without a file.
#[test]
fn a_removed_entry_leaves_the_file_as_it_was() {
    for client in McpClient::ALL {
        let entry = client.entry(&command()).unwrap();
        let texts = if client.is_toml() {
            &[TOML, "", "# only this"][..]
        } else {
            &[JSONC, PLAIN_JSON, "", "{}", " {\r\n}\r\n", "\u{feff}{}\n"]
        };
        for before in texts.iter().map(|text| text.replace("TABLE", client.table)) {
            let home = tempfile::tempdir().unwrap();
            let path = home.path().join("file");
            fs::write(&path, &before).unwrap();
            let at = at(client, &path);
            let report = at.write(&entry, false).unwrap();
            assert_eq!(report.change, InstallChange::Added, "{}", client.name);
            assert_eq!(fs::read_to_string(report.backup.unwrap()).unwrap(), before);
            let after = fs::read_to_string(&path).unwrap();
            assert_eq!(at.present().unwrap(), Some(entry.clone()), "{after}");
            // All that was there is there, in its order.
            let mut left = after.as_str();
            for part in before.split(['\n', '{', '}', ',']).map(str::trim) {
                let place =
                    left.find(part).unwrap_or_else(|| panic!("{}: {part} is lost: {after}", client.name));
                left = &left[place + part.len()..];
            }
            assert_eq!(at.write(&entry, false).unwrap().change, InstallChange::Unchanged);
            assert_eq!(names(home.path()), ["file", "file.bak-toolcrib"]);
            let removed = at.remove().unwrap();
            assert!(removed.change == InstallChange::Removed && removed.restored, "{}: {after}", client.name);
            assert_eq!(fs::read_to_string(&path).unwrap(), before);
            assert_eq!(names(home.path()), ["file"]);
            assert_eq!(at.remove().unwrap().change, InstallChange::Absent);
        }
        // A file that was not there, in a folder that was not there.
        let home = tempfile::tempdir().unwrap();
        let at = at(client, &home.path().join("a/b/file"));
        assert_eq!(at.write(&entry, false).unwrap().backup, None);
        assert!(at.remove().unwrap().restored && !at.path().exists(), "{}", client.name);
    }
}

#[test]
fn what_has_changed_since_stays() {
    for (name, before) in [("zed", JSONC), ("codex", TOML)] {
        let client = McpClient::named(name).unwrap();
        let entry = client.entry(&command()).unwrap();
        let home = tempfile::tempdir().unwrap();
        let (path, before) = (home.path().join("file"), before.replace("TABLE", client.table));
        fs::write(&path, &before).unwrap();
        let at = at(client, &path);
        at.write(&entry, false).unwrap();
        let text = fs::read_to_string(&path).unwrap().replace("dark", "light");
        fs::write(&path, text).unwrap();
        let removed = at.remove().unwrap();
        assert!(!removed.restored && removed.backup.is_some(), "{name}");
        assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), before.replace("dark", "light").trim_end());
        assert_eq!(names(home.path()).len(), 3, "no backup is overwritten");
    }
}

#[test]
fn another_entry_of_the_name_is_replaced_only_if_wanted() {
    for (name, text) in [
        ("cursor", "{\"mcpServers\": {\"toolcrib\": {\"command\": \"old\"}, \"b\": {}}} // end\n"),
        ("codex", "[mcp_servers.toolcrib]\ncommand = \"old\" # mine\n[mcp_servers.b]\ncommand = \"b\"\n"),
        ("codex", "mcp_servers = { toolcrib = { command = \"old\" }, b = { command = \"b\" } }\n"),
    ] {
        let client = McpClient::named(name).unwrap();
        let entry = client.entry(&command()).unwrap();
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, text).unwrap();
        let at = at(client, &path);
        let refused = at.write(&entry, false).unwrap_err().to_string();
        assert!(refused.contains("has another entry `toolcrib`"), "{refused}");
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(home.path()).len()), (text, 1));
        assert_eq!(at.write(&entry, true).unwrap().change, InstallChange::Replaced);
        let after = fs::read_to_string(&path).unwrap();
        assert_eq!(at.present().unwrap(), Some(entry), "{after}");
        assert!(!after.contains("old"), "{after}");
        // The old entry is not what is left of it.
        assert!(!at.remove().unwrap().restored);
        assert_eq!(at.present().unwrap(), None);
        assert!(Installation::new(client, &path, "b").present().unwrap().is_some());
    }
}

#[test]
fn a_file_that_cannot_be_understood_is_not_changed() {
    for (name, text, problem) in [
        ("cursor", "{\n  \"mcpServers\": {\n    \"a\": 1\n    \"b\": 2\n  }\n}", "file:3:"),
        ("cursor", "{\n  \"mcpServers\": {", "file:2:"),
        ("cursor", "{'a': 1}", "file:1:2:"),
        ("cursor", "[1]", "the file is not a JSON object"),
        ("vscode", "{\"servers\": []}", "`servers` is not a JSON object"),
        ("codex", "a = 1\n[mcp_servers\nb = 2\n", "file:2:13:"),
        ("codex", "a = 1\na = 2\n", "file:2:1:"),
        ("codex", "mcp_servers = 1\n", "`mcp_servers` is not a table"),
    ] {
        let client = McpClient::named(name).unwrap();
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        fs::write(&path, text).unwrap();
        let at = at(client, &path);
        for refused in [at.write(&client.entry(&command()).unwrap(), true), at.remove()] {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains(problem), "{text}: {error}");
            assert!(error.help().unwrap().contains("nothing was changed"));
        }
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names(home.path()).len()), (text, 1));
    }
    let home = tempfile::tempdir().unwrap();
    let cursor = McpClient::named("cursor").unwrap();
    for (path, bytes) in [("latin1", &b"{\"a\": \"\xe9\"}"[..]), ("folder/in", b"")] {
        let path = home.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        let place = if bytes.is_empty() { path.join("below-a-file") } else { path.clone() };
        let refused = at(cursor, &place).write(&cursor.entry(&command()).unwrap(), false);
        assert!(refused.is_err(), "{}", place.display());
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn rights_and_links_of_a_file_stay() {
    let cursor = McpClient::named("cursor").unwrap();
    let entry = cursor.entry(&command()).unwrap();
    let home = tempfile::tempdir().unwrap();
    let (real, link) = (home.path().join("dotfiles/mcp.json"), home.path().join("mcp.json"));
    fs::create_dir(home.path().join("dotfiles")).unwrap();
    fs::write(&real, "{}\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("dotfiles/mcp.json", &link).unwrap();
    let at = at(cursor, &link);
    let backup = at.write(&entry, false).unwrap().backup.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert!(link.is_symlink() && fs::read_to_string(&real).unwrap().contains("/opt/toolcrib"));
    assert_eq!((mode(&real), mode(&backup)), (0o640, 0o640));
    assert!(at.remove().unwrap().restored && link.is_symlink());
    assert_eq!((fs::read_to_string(&real).unwrap().as_str(), mode(&real)), ("{}\n", 0o640));
    // A link to nothing is nobody's file.
    fs::remove_file(&real).unwrap();
    assert!(at.write(&entry, false).is_err() && link.is_symlink() && !real.exists());
}

#[test]
fn the_files_of_clients_are_found() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().to_str().unwrap();
    let env = Env::new(path, [("HOME", path), ("CODEX_HOME", "/elsewhere/codex")]);
    let file = |name: &str| McpClient::named(name).unwrap().user_file(&env).unwrap();
    assert_eq!(file("cursor"), home.path().join(".cursor/mcp.json"));
    assert_eq!(file("codex"), Path::new("/elsewhere/codex/config.toml"));
    assert_eq!(file("claude-code"), home.path().join(".claude.json"));
    let found = |name: &str| McpClient::named(name).unwrap().is_found(&env);
    assert!(!found("claude-code") && !found("cursor"));
    fs::create_dir(home.path().join(".claude")).unwrap();
    fs::create_dir(home.path().join(".cursor")).unwrap();
    assert!(found("claude-code") && found("cursor") && !found("zed"));
    let project = |name: &str| McpClient::named(name).unwrap().project_file(Path::new("/p"));
    assert_eq!(project("vscode").unwrap(), Path::new("/p/.vscode/mcp.json"));
    assert!(project("windsurf").unwrap_err().help().unwrap().contains("leave out --project"));
    let nowhere = McpClient::named("zed").unwrap().user_file(&Env::new("/", [("A", "b")]));
    assert!(nowhere.unwrap_err().to_string().contains("home folder"));
}

#[test]
fn no_link_out_of_a_project_is_followed() {
    let home = tempfile::tempdir().unwrap();
    let project = home.path().join("project");
    fs::create_dir_all(project.join("inside")).unwrap();
    fs::create_dir(home.path().join("mine")).unwrap();
    fs::write(home.path().join("mine/mcp.json"), "{}\n").unwrap();
    let client = McpClient::named("cursor").unwrap();
    let path = project.join(".cursor/mcp.json");
    let at = || Installation::new(client, &path, "toolcrib").within(&project);
    let link = |target: &str| {
        let _ = fs::remove_file(project.join(".cursor"));
        std::os::unix::fs::symlink(target, project.join(".cursor")).unwrap();
    };
    assert!(at().is_ok(), "nothing is there yet");
    let before = at().unwrap();
    for target in ["../mine", "../nowhere", "/"] {
        link(target);
        let error = at().unwrap_err().to_string();
        assert!(error.contains("is not changed: it leads to "), "{target}: {error}");
        assert!(before.remove().is_err(), "{target}");
    }
    link("inside");
    assert!(at().is_ok(), "a link within the folder");
    std::os::unix::fs::symlink("../../mine/mcp.json", project.join("inside/mcp.json")).unwrap();
    assert!(at().is_err(), "the file itself is a link");
    assert_eq!(fs::read_to_string(home.path().join("mine/mcp.json")).unwrap(), "{}\n");
}
