//! Edits keep all other text, and refuse what could not be used.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::json;

use super::*;

const FILE: &str = "# My servers.\n# They are for work.\n\nimport = [] # none\n\n# The first one.\n[servers.a] # here\n\
    builtin  =  'time'   # kept as it is\n\n[servers.a.tools]\nallow = [ \"now\", ]\n\n# About b.\n\n# The second one.\n\
    [servers.b]\nbuiltin = \"calc\"\n\n# The agent.\n[agent]\nmax_turns = 5\n\n# The end.\n";

fn edited(
    text: &str,
    edit: impl Fn(&ConfigFile, &Env) -> Result<EditReport>,
) -> Result<(String, EditReport)> {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::new(folder.path(), [("HOME", "/nowhere")]);
    let path = folder.path().join("servers.toml");
    fs::write(&path, text).unwrap();
    let file = ConfigFile::locate(None, &env)?;
    assert_eq!(file.path(), path);
    let done = edit(&file, &env);
    let after = fs::read_to_string(&path).unwrap();
    match done {
        Ok(report) => {
            assert_eq!(fs::read_to_string(report.backup.as_ref().unwrap()).unwrap(), text);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
            Ok((after, report))
        }
        Err(error) => {
            assert_eq!(after, text, "the file is as it was");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            Err(error)
        }
    }
}

fn added(text: &str, keys: &Value) -> Result<(String, EditReport)> {
    edited(text, |file, env| file.add(&ServerName::new("new").unwrap(), keys, env))
}

fn removed(text: &str, name: &str) -> Result<String> {
    edited(text, |file, env| file.remove(name, env)).map(|(text, _)| text)
}

#[test]
fn a_server_is_added_behind_the_others_and_removed_again() {
    let keys = json!({"command": "npx", "args": ["-y", "a \"b\""], "env": {"K": "${K:-}"}, "required": true});
    let (after, report) = added(FILE, &keys).unwrap();
    let table = "\n[servers.new]\ncommand = \"npx\"\nargs = [\"-y\", 'a \"b\"']\nenv = { K = \"${K:-}\" }\nrequired = true\n";
    let place = FILE.find("\n# The agent.").unwrap();
    assert_eq!(after, format!("{}{table}{}", &FILE[..place], &FILE[place..]));
    assert!(report.config.servers["new"].required && report.secrets.is_empty());
    assert_eq!(removed(&after, "new").unwrap(), FILE);
}

#[test]
fn texts_of_many_forms_are_edited() {
    let keys = json!({"builtin": "search"});
    for text in [
        "",
        "\n",
        "# Only words.",
        "# Only words.\n",
        "servers = { a = { builtin = 'time' } }\n",
        "servers.a.builtin = 'time'\n",
        "[servers]\na = { builtin = 'time' }\nb.builtin = 'calc'\n",
        "[servers.a]\nbuiltin = 'time'",
        "import = []\n[agent]\nmax_turns = 3\n",
        "\u{feff}[servers.a]\r\nbuiltin = 'time'\r\n\r\n# The end.\r\n",
    ] {
        let (after, report) = added(text, &keys).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert!(report.config.servers.contains_key("new"), "{after:?}");
        for word in text.split(['\r', '\n', '{', '}']).map(str::trim) {
            assert!(after.contains(word), "{word:?} is lost: {after:?}");
        }
        assert!(!text.contains("\r\n") || !after.replace("\r\n", "").contains('\n'), "{after:?}");
        assert_eq!(text.starts_with('\u{feff}'), after.starts_with('\u{feff}'));
        assert!(!after[3.min(after.len())..].contains('\u{feff}'));
        if text.starts_with("# Only") {
            assert!(after.starts_with("# Only words.\n\n[servers.new]"), "{after:?}");
        }
        let back = removed(&after, "new").unwrap();
        assert_eq!(back.trim(), text.trim());
    }
}

#[test]
fn a_removed_server_takes_its_own_comment_alone() {
    let without_a = removed(FILE, "a").unwrap();
    let expected = FILE.replace(
        "# The first one.\n[servers.a] # here\nbuiltin  =  'time'   # kept as it is\n\n[servers.a.tools]\nallow = [ \"now\", ]\n\n",
        "",
    );
    assert_eq!(without_a, expected);
    let without_b = removed(FILE, "b").unwrap();
    assert_eq!(without_b, FILE.replace("# The second one.\n[servers.b]\nbuiltin = \"calc\"\n\n", ""));
    // What is said at the beginning is of the file, and not of its first table.
    let head = "# Of the file.\n\n# Of a.\n[servers.a]\nbuiltin = 'time'\n";
    assert_eq!(removed(head, "a").unwrap().trim(), "# Of the file.");
    assert_eq!(removed(&format!("{head}[agent]\n"), "a").unwrap(), "# Of the file.\n\n[agent]\n");
    assert_eq!(
        removed(&format!("{head}\n# Of agents.\n[agent]\n"), "a").unwrap(),
        "# Of the file.\n\n# Of agents.\n[agent]\n"
    );
}

#[test]
fn what_cannot_be_used_is_not_written() {
    let fails = |text: &str, keys: &Value, words: &str| {
        let error = added(text, keys).unwrap_err();
        let told = format!("{error} {}", error.help().unwrap_or_default());
        assert!(told.contains(words), "{told}");
    };
    let time = json!({"builtin": "time"});
    fails("[servers.new]\nbuiltin = 'calc'\n", &time, "toolcrib remove new");
    fails("[servers.new]\nenabled = false\nbuiltin = 'calc'\n", &time, "already");
    fails(FILE, &json!({"url": "https://h.example/", "env": {}}), "env");
    fails(FILE, &json!({"comand": "x"}), "command");
    fails(FILE, &json!({"url": "nothing"}), "`new` is not added: servers.new.url");
    fails("[servers.a]\nbuiltn = 'time'\n", &time, "did you mean `builtin`?");
    fails("[servers\n", &time, "servers.toml:1");
    let of_profile = "[servers.a]\nbuiltin = 'time'\n[profile.p]\nservers = ['a']\n";
    let error = removed(of_profile, "a").unwrap_err().to_string();
    assert!(error.contains('a') && error.contains("profile.p"), "{error}");
    assert!(removed(FILE, "c").unwrap_err().to_string().contains('c'));
    // A variable may be set later.
    let (_, report) = added(FILE, &json!({"command": "x", "env": {"A": "${NOT_SET}"}})).unwrap();
    assert!(report.config.servers["new"].server.is_err());
}

#[test]
fn secrets_in_plain_text_are_named() {
    let keys = json!({"command": "x", "args": ["--token", "abcdefgh1234"],
        "env": {"API_KEY": "abcdefgh1234", "B_KEY": "${B_KEY:-}", "PORT": "8080"}});
    assert_eq!(added("", &keys).unwrap().1.secrets, ["args[1]", "env.API_KEY"]);
}

#[test]
fn imported_servers_are_not_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::new(folder.path(), [("HOME", "/nowhere")]);
    fs::write(folder.path().join("other.toml"), "[mcp_servers.new]\ncommand = 'x'\n").unwrap();
    fs::write(folder.path().join("servers.toml"), "import = ['other.toml']\n").unwrap();
    let file = ConfigFile::locate(None, &env).unwrap();
    for error in [
        file.add(&ServerName::new("new").unwrap(), &json!({"builtin": "time"}), &env).unwrap_err(),
        file.remove("new", &env).unwrap_err(),
    ] {
        assert!(error.to_string().contains("other.toml"), "{error}");
    }
}

#[test]
fn a_new_file_is_made_and_none_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::new(folder.path(), [("HOME", "/nowhere")]);
    let file = ConfigFile::locate(None, &env).unwrap();
    assert!(!file.is_there());
    let report = file.add(&ServerName::new("a").unwrap(), &json!({"builtin": "time"}), &env).unwrap();
    assert_eq!((report.backup, report.config.servers.len()), (None, 1));
    assert!(
        file.create("[servers.b]\nbuiltin = 'calc'\n", &env)
            .unwrap_err()
            .to_string()
            .contains("is there already")
    );
    let named = ConfigFile::locate(Some(Path::new("deep/er/x.toml")), &env).unwrap();
    assert!(named.create("[servers.b]\nbuiltn = 'calc'\n", &env).is_err() && !named.is_there());
    named.create("[servers.b]\nbuiltin = 'calc'\n", &env).unwrap();
    assert!(folder.path().join("deep/er/x.toml").is_file());
}

#[test]
fn rights_and_links_of_the_file_stay() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::new(folder.path().join("work"), [("HOME", "/nowhere")]);
    let (work, elsewhere) = (folder.path().join("work"), folder.path().join("elsewhere"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&elsewhere).unwrap();
    let real = elsewhere.join("real.toml");
    fs::write(&real, FILE).unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).unwrap();
    let link = work.join("servers.toml");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    // A link of the folder could lead to any file of the user, unless the user names it.
    let error = ConfigFile::locate(None, &env).unwrap().remove("a", &env).unwrap_err();
    assert!(error.to_string().contains("leads to") && error.help().unwrap().contains("--config"), "{error}");
    assert_eq!(fs::read_to_string(&real).unwrap(), FILE);
    let named = ConfigFile::locate(Some(&link), &env).unwrap();
    let backup = named.remove("a", &env).unwrap().backup.unwrap();
    assert!(link.is_symlink() && !fs::read_to_string(&real).unwrap().contains("servers.a"));
    for file in [&real, &backup] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // One backup is kept: that of the last edit.
    named.remove("b", &env).unwrap();
    assert!(!fs::read_to_string(&backup).unwrap().contains("servers.a"));
    assert_eq!(fs::read_dir(&work).unwrap().count(), 2);
}
