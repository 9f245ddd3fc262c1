//! The gateways that are measured: how each is started, and how it is reached.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Map, json};
use tokio::process::{Child, Command};
use toolcrib::cli_support::bench::Scratch;

use super::{Client, SERVER, echo_of, identity};
use crate::{
    fakes,
    mcp::{Era, HttpClient, LineClient, nobody},
};

/// How long a gateway may take to listen.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end.
const STOP: Duration = Duration::from_secs(10);

/// How to start a gateway. In `command` and `url`, `{port}` stands for a free port, `{config}` for a file with `mcpServers` as
/// most tools read it, `{toml}` for one of toolcrib, `{server}` for the server's command in one word, and the word
/// `{server..}` for the words of it.
#[derive(Deserialize)]
pub(crate) struct Gateway {
    pub(super) name: String,
    command: Vec<String>,
    /// Where it serves HTTP; without it the command is started for each client, and serves its stdin and stdout.
    pub(super) url: Option<String>,
    /// Words of the command that is run once before clients start theirs.
    #[serde(default)]
    before: Vec<String>,
    /// Words of the command that ends what `command` has left running.
    #[serde(default)]
    after: Vec<String>,
}

/// A gateway that runs, unless each client starts one.
pub(crate) struct Running {
    child: Option<Child>,
    /// The command with all words filled in.
    command: Vec<String>,
    url: Option<String>,
    after: Vec<String>,
}

/// `toolcrib serve` and `toolcrib connect`.
pub(crate) fn own(toolcrib: Option<&Path>) -> anyhow::Result<Vec<Gateway>> {
    let program = match toolcrib {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("toolcrib"),
    };
    anyhow::ensure!(program.is_file(), "{} is not there: run `cargo build` first", program.display());
    let words = |words: &[&str]| {
        let program = program.display().to_string();
        let config = ["--config".to_owned(), "{toml}".to_owned()];
        let words = words.iter().map(ToString::to_string);
        [program].into_iter().chain(config).chain(words).collect::<Vec<_>>()
    };
    let serve = Gateway {
        name: "toolcrib serve".to_owned(),
        command: words(&["serve", "--http", "127.0.0.1:{port}"]),
        url: Some(format!("http://127.0.0.1:{{port}}/mcp/{SERVER}")),
        before: Vec::new(),
        after: Vec::new(),
    };
    let connect = Gateway {
        name: "toolcrib connect".to_owned(),
        command: words(&["connect", SERVER]),
        url: None,
        // Nobody looks at what a client starts.
        before: words(&["trust"]),
        after: words(&["down"]),
    };
    Ok(vec![serve, connect])
}

pub(super) fn peers(file: &Path) -> anyhow::Result<Vec<Gateway>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    serde_json::from_str(&text).with_context(|| file.display().to_string())
}

/// Writes the configurations that the gateways read.
pub(crate) fn write_configs(scratch: &Scratch) -> anyhow::Result<()> {
    let (program, words) = fakes::command(&["baseline"])?;
    let server = json!({"command": program, "args": words, "lifecycle": "keep-alive"});
    let config = json!({"mcpServers": Map::from_iter([(SERVER.to_owned(), server)])});
    std::fs::write(config_file(scratch), config.to_string())?;
    // Clients that vanish leave their sessions behind.
    let limits = "[gateway]\nmax_sessions = 10000\n";
    let toml = format!(
        "{limits}[servers.{SERVER}]\ncommand = {:?}\nargs = {words:?}\n",
        program.display().to_string()
    );
    std::fs::write(toml_file(scratch), toml)?;
    Ok(())
}

fn config_file(scratch: &Scratch) -> PathBuf {
    scratch.file("mcp.json")
}

pub(crate) fn toml_file(scratch: &Scratch) -> PathBuf {
    scratch.file("servers.toml")
}

impl Gateway {
    /// The program.
    pub(crate) fn program(&self) -> &str {
        self.command.first().map_or("", String::as_str)
    }

    /// Starts it and waits until it listens.
    pub(crate) async fn start(&self, scratch: &Scratch) -> anyhow::Result<Running> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (program, words) = fakes::command(&["baseline"])?;
        let server: Vec<_> = [program.display().to_string()].into_iter().chain(words).collect();
        let fill = |word: &str| {
            word.replace("{port}", &port.to_string())
                .replace("{config}", &config_file(scratch).display().to_string())
                .replace("{toml}", &toml_file(scratch).display().to_string())
                .replace("{server}", &server.join(" "))
        };
        let fill_all = |words: &[String]| {
            let filled = words.iter().flat_map(|word| match word.as_str() {
                "{server..}" => server.clone(),
                word => vec![fill(word)],
            });
            filled.collect::<Vec<_>>()
        };
        let command = fill_all(&self.command);
        let mut running = Running {
            child: None,
            url: self.url.as_deref().map(fill),
            after: fill_all(&self.after),
            command,
        };
        if let Some((program, words)) = fill_all(&self.before).split_first() {
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
            anyhow::ensure!(command.status().await?.success(), "{program} {} failed", words.join(" "));
        }
        if running.url.is_some() {
            let (program, words) = running.command.split_first().context("there is no command")?;
            let log = std::fs::File::create(scratch.file("gateway.log"))?;
            let mut command = Command::new(program);
            command.args(words).current_dir(scratch.file(".")).process_group(0).kill_on_drop(true);
            command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let mut child = command.spawn().with_context(|| program.clone())?;
            let deadline = Instant::now() + START;
            while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                let ended = child.try_wait()?;
                if ended.is_some() || Instant::now() > deadline {
                    let said = std::fs::read_to_string(scratch.file("gateway.log")).unwrap_or_default();
                    let state = ended.map_or("it does not listen".to_owned(), |ended| ended.to_string());
                    anyhow::bail!("{state}: {}", last_lines(&said));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            running.child = Some(child);
        }
        Ok(running)
    }

    /// A client of it, and the call that it makes.
    pub(super) async fn client(
        &self,
        running: &Running,
        scratch: &Scratch,
        era: Era,
    ) -> anyhow::Result<Client> {
        let identity = identity(era);
        let list = identity.request("tools/list", Map::new());
        let arguments = json!({"text": "hello"});
        Ok(match &running.url {
            Some(url) => {
                let client = HttpClient::open(url, identity).await?;
                let echo = echo_of(client.request(&list, &nobody).await?)?;
                let call = client.identity.call(&echo, &arguments);
                Client::Http(client, call)
            }
            None => {
                let client = LineClient::open(&running.command, &scratch.file("."), identity).await?;
                let echo = echo_of(client.request(&list).await?)?;
                let call = client.identity.call(&echo, &arguments);
                Client::Lines(client, call)
            }
        })
    }
}

impl Running {
    /// Where it serves HTTP.
    pub(crate) fn url(&self) -> Option<String> {
        self.url.clone()
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        Pid::from_raw(self.child.as_ref()?.id()?.try_into().ok()?)
    }

    /// Ends it, with what it started in its process group.
    pub(crate) async fn stop(self) {
        if let Some(mut child) = self.child {
            let group = child.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
            let signal = |signal| group.map(|group| kill_process_group(group, signal));
            signal(Signal::TERM);
            if tokio::time::timeout(STOP, child.wait()).await.is_err() {
                signal(Signal::KILL);
                let _ = child.wait().await;
            }
        }
        if let Some((program, words)) = self.after.split_first() {
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let _ = command.status().await;
        }
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}
