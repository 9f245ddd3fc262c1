//! `toolcrib up --watch`, the built program: files are edited under it, and its events are read.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{program::program_in, signal, wait_for};

const FIXTURE: &str = crate::support::FIXTURE;

/// How long an event may take.
const LIMIT: Duration = Duration::from_secs(30);

/// A server that is a script, which runs the fixture with `flags`.
fn script(flags: &str) -> String {
    format!("exec {FIXTURE} {flags}\n")
}

const SERVERS: &str = "[servers.scripted]\ncommand = \"sh\"\nargs = [\"server.sh\"]\nenv_file = \"my.env\"\n\
    [servers.steady]\ncommand = FIXTURE\n";

/// The program, watching a folder of its own.
struct Up {
    folder: TempDir,
    child: Child,
    events: Receiver<Value>,
    /// The events until it watched.
    started: Vec<Value>,
}

impl Up {
    /// Runs it and waits until it watches.
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "servers.toml", config);
        write(folder.path(), "server.sh", &script(""));
        write(folder.path(), "my.env", "A=1\n");
        let mut child = program_in(folder.path())
            .args(["--json", "up", "--watch"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, events) = channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        let mut up = Self { folder, child, events, started: Vec::new() };
        while up.started.last().is_none_or(|event| event["event"] != "watching") {
            up.started.push(up.events.recv_timeout(LIMIT).unwrap());
        }
        up
    }

    fn edit(&self, name: &str, text: &str) {
        write(self.folder.path(), name, text);
    }

    /// The next event of that kind, of that server unless the name is empty. Others are passed over.
    fn until(&self, kind: &str, server: &str) -> Value {
        loop {
            let event = self.events.recv_timeout(LIMIT);
            let event = event.unwrap_or_else(|_| panic!("no `{kind}` of `{server}`"));
            if event["event"] == kind && (server.is_empty() || event["server"] == server) {
                return event;
            }
        }
    }

    fn reloaded(&self) -> Value {
        let event = self.until("reloaded", "");
        json!([event["added"], event["removed"], event["restarted"], event["unchanged"]])
    }

    /// Ends it; nothing may be left.
    fn end(mut self) {
        signal("INT", self.child.id());
        let teardown = self.until("teardown", "");
        assert_eq!(teardown["processes_left"], 0);
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes a file as editors do: another file takes the place of the old one.
fn write(folder: &Path, name: &str, text: &str) {
    let text = text.replace("FIXTURE", &format!("{FIXTURE:?}"));
    let aside = folder.join(format!("{name}.tmp"));
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(aside, folder.join(name)).unwrap();
}

#[test]
fn a_changed_script_restarts_only_its_server() {
    let up = Up::new(SERVERS);
    up.edit("server.sh", &script("pages=2"));
    assert_eq!(up.until("changed", "scripted")["wait_ms"], 0.0);
    let ready = up.until("ready", "scripted");
    assert_eq!((&ready["tools"], &ready["restarts"]), (&json!(14), &json!(1)));
    // The output of a broken script is shown. The next edit restarts the server, regardless of the restart policy.
    up.edit("server.sh", "echo 'no such thing' >&2\nexit 4\n");
    let failed = up.until("failed", "scripted");
    assert_eq!(failed["error"]["code"], "server_exited");
    assert_eq!(failed["error"]["stderr_tail"], json!(["no such thing"]));
    while up.until("failed", "scripted")["gave_up"] != true {}
    up.edit("server.sh", &script("pages=3"));
    assert_eq!(up.until("ready", "scripted")["tools"], 15);
    // A change of the script alone is no change of the configuration.
    up.edit("servers.toml", SERVERS);
    assert_eq!(up.reloaded(), json!([[], [], [], ["scripted", "steady"]]));
    up.end();
}

#[test]
fn only_changed_entries_of_an_edit_are_applied() {
    let up = Up::new(SERVERS);
    let more = format!("{SERVERS}[servers.calc]\nbuiltin = \"calc\"\n");
    up.edit("servers.toml", &more);
    assert_eq!(up.reloaded(), json!([["calc"], [], [], ["scripted", "steady"]]));
    up.edit("servers.toml", &format!("{more}comand = \"x\"\n"));
    let refused = up.until("reload_failed", "");
    assert_eq!(refused["error"]["message"], "servers.toml:9: `servers.calc.comand`: unknown key");
    up.edit("servers.toml", &SERVERS.replace("FIXTURE", "FIXTURE\nargs = [\"pages=2\"]"));
    assert_eq!(up.until("stopped", "calc")["outcome"], "exited");
    assert_eq!(up.until("ready", "steady")["tools"], 14);
    assert_eq!(up.reloaded(), json!([[], ["calc"], ["steady"], ["scripted"]]));
    // An env file is part of the configuration of its server.
    up.edit("my.env", "A=2\n");
    assert_eq!(up.reloaded(), json!([[], [], ["scripted"], ["steady"]]));
    std::fs::remove_file(up.folder.path().join("my.env")).unwrap();
    let kept = up.until("reloaded", "");
    assert_eq!(
        (&kept["failures"][0]["server"], &kept["failures"][0]["kept"]),
        (&json!("scripted"), &json!(true))
    );
    up.end();
}

#[test]
fn an_edit_starts_a_failed_server() {
    let up = Up::new(
        "[servers.bad]\ncommand = FIXTURE\nargs = [\"die-now\"]\n[servers.late]\ncommand = \"sh\"\nargs = [\"late.sh\"]\nstartup_timeout = \"1h\"\n",
    );
    // One that hangs gives way to the next edit.
    up.edit("late.sh", "echo there >started\nexec sleep 600\n");
    wait_for("the hanging script", || up.folder.path().join("started").exists());
    up.edit("late.sh", &script(""));
    assert_eq!(up.until("ready", "late")["tools"], 12);
    up.edit(
        "servers.toml",
        "[servers.bad]\ncommand = FIXTURE\n[servers.late]\ncommand = \"sh\"\nargs = [\"late.sh\"]\nstartup_timeout = \"1h\"\n",
    );
    up.until("ready", "bad");
    assert_eq!(up.reloaded(), json!([[], [], ["bad"], ["late"]]));
    up.end();
}

#[test]
fn a_server_that_edits_its_own_file_restarts_slowly() {
    let config = "[servers.one]\ncommand = \"sh\"\nargs = [\"server.sh\"]\nwatch = [\"own/*.json\"]\n";
    let up = Up::new(config);
    std::fs::create_dir(up.folder.path().join("own")).unwrap();
    up.edit("server.sh", &format!("date > own/own.json\n{}", script("")));
    while up.until("changed", "one")["wait_ms"] == 0.0 {}
    up.end();
}

#[test]
fn changed_modes_and_times_restart_no_server() {
    let up = Up::new(SERVERS);
    let file = std::fs::File::open(up.folder.path().join("server.sh")).unwrap();
    file.set_modified(std::time::SystemTime::now()).unwrap();
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    up.edit("servers.toml", &format!("{SERVERS}# the same\n"));
    loop {
        let event = up.events.recv_timeout(LIMIT).unwrap();
        assert_ne!(event["event"], "changed", "{event}");
        if event["event"] == "reloaded" {
            break;
        }
    }
    // Who touches it by hand opens it to write.
    drop(std::fs::File::options().append(true).open(up.folder.path().join("server.sh")).unwrap());
    up.until("changed", "scripted");
    up.until("ready", "scripted");
    up.end();
}

#[test]
fn links_below_a_watched_folder_are_not_followed() {
    let up = Up::new("[servers.one]\ncommand = FIXTURE\nwatch = [\"src/**/*.py\"]\n");
    let src = up.folder.path().join("src");
    std::fs::create_dir_all(src.join("sub")).unwrap();
    std::os::unix::fs::symlink("/", src.join("root")).unwrap();
    // The folder has come meanwhile.
    up.edit(
        "servers.toml",
        "[servers.one]\ncommand = FIXTURE\nwatch = [\"src/**/*.py\"]\nstartup_timeout = \"1m\"\n",
    );
    up.until("reloaded", "");
    up.edit("src/sub/a.py", "1");
    up.until("changed", "one");
    #[cfg(target_os = "linux")]
    {
        let files = std::fs::read_dir(format!("/proc/{}/fdinfo", up.child.id())).unwrap().flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        let watches: usize = texts.map(|text| text.matches("inotify wd:").count()).sum();
        assert!((1..50).contains(&watches), "{watches} folders are watched");
    }
    up.end();
}

#[test]
fn exits_of_servers_are_shown_as_they_happen() {
    let up = Up::new(SERVERS);
    let victim = up.started.iter().find(|event| event["event"] == "ready" && event["server"] == "steady");
    let victim = u32::try_from(victim.unwrap()["pid"].as_u64().unwrap()).unwrap();
    signal("KILL", victim);
    let lost = up.until("lost", "");
    assert_eq!((&lost["pid"], &lost["error"]["code"]), (&json!(victim), &json!("session_lost")));
    assert!(lost["error"]["message"].as_str().unwrap().contains("was killed by signal 9"), "{lost}");
    assert_eq!(lost["server"], "steady");
    up.until("reconnecting", "steady");
    let ready = up.until("ready", "steady");
    assert_eq!(ready["restarts"], 1);
    assert_ne!(ready["pid"], victim);
    up.end();
}
