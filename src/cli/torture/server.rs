//! `toolcrib torture-server`: a tool server that is hard to get rid of. It answers as a real one does.
//!
//! It marks itself in its environment by starting itself again, since its owner may pass on no variables. Whom
//! it leaves behind inherits the mark: that is how survivors are counted, wherever they went.

use std::{
    io::{BufRead, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread::sleep,
    time::Duration,
};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

/// Name of the variable that marks all processes of one cell.
pub(super) const MARK: &str = "TOOLCRIB_TORTURE";
/// Live processes of a fork storm.
const STORM: usize = 400;
/// How long a hopper stays in one process.
const HOP: Duration = Duration::from_millis(2);
const FOREVER: Duration = Duration::from_secs(3600);

/// What a server does that makes it hard to end. Each is a row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Behaviour {
    /// Leaves at the end of its input.
    Polite,
    /// Goes on after the end of its input.
    IgnoresEof,
    /// Goes on after the end of its input, and takes no notice of SIGTERM.
    IgnoresEofAndTerm,
    /// Is the child of a shell, and goes on after the end of its input.
    BehindSh,
    /// Leaves at the end of its input, and leaves a child behind.
    Helper,
    /// As `helper`; the child is in a session of its own.
    SetsidHelper,
    /// As `helper`; the child is a daemon: forked twice, in a session of its own.
    Daemon,
    /// As `helper`; the child keeps stdout open.
    HelperHoldsStdout,
    /// A process in a session of its own keeps 400 children alive and takes no notice of SIGTERM.
    ForkStorm,
    /// A process that starts itself again in a new session every 2 ms and ends.
    SessionHopper,
    /// Child of a shell; ignores the end of its input and SIGTERM; with a daemon and a helper.
    Everything,
}

#[derive(Args)]
pub(in crate::cli) struct TortureServer {
    #[arg(value_enum)]
    behaviour: Behaviour,
    /// Value of the mark of all its processes.
    #[arg(long)]
    mark: String,
    /// Where helpers leave signs of life; those that hop end once FILE.stop exists.
    #[arg(long, value_name = "FILE")]
    beat: PathBuf,
    /// Set in the processes that it starts.
    #[arg(long, value_enum, hide = true)]
    role: Option<Role>,
}

/// What a process that the server left behind does.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Role {
    /// Leaves the session, then stays.
    Session,
    /// Leaves the session, has a child that stays, and ends.
    Daemon,
    /// Leaves the session and keeps many children alive.
    Storm,
    /// Leaves the session, starts itself again, and ends.
    Hopper,
}

impl Behaviour {
    /// The command line of a server that behaves so.
    pub(super) fn command(self, own: &Path, mark: &str, beat: &Path) -> Vec<String> {
        let shell: &[&str] = match self {
            // What follows keeps the shell from making way for its command.
            Self::BehindSh | Self::Everything => &["/bin/sh", "-c", "\"$@\"; true", "sh"],
            _ => &[],
        };
        let shell = shell.iter().map(ToString::to_string);
        shell.chain([own.display().to_string()]).chain(self.arguments(mark, beat)).collect()
    }

    fn arguments(self, mark: &str, beat: &Path) -> [String; 6] {
        let beat = beat.display().to_string();
        ["torture-server", &name_of(&self), "--mark", mark, "--beat", &beat].map(str::to_owned)
    }

    /// Signs of life after which it has done its worst.
    fn signs(self) -> u64 {
        match self {
            Self::SetsidHelper | Self::Daemon | Self::ForkStorm | Self::Everything => 1,
            Self::SessionHopper => 5,
            _ => 0,
        }
    }

    fn ignores_eof(self) -> bool {
        matches!(self, Self::IgnoresEof | Self::IgnoresEofAndTerm | Self::BehindSh | Self::Everything)
    }
}

impl TortureServer {
    /// Before any thread is there: blocked signals are inherited by threads and across `exec`.
    pub(in crate::cli) fn run(self) -> ExitCode {
        match self.live() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(std::io::stderr(), "torture-server: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn live(&self) -> std::io::Result<()> {
        if std::env::var_os(MARK).is_none_or(|mark| mark != *self.mark) {
            if matches!(self.behaviour, Behaviour::IgnoresEofAndTerm | Behaviour::Everything) {
                ignore_term()?;
            }
            return Err(self.again(None)?.exec());
        }
        match self.role {
            None => self.serve(),
            Some(role) => self.play(role),
        }
    }

    /// This program once more, marked.
    fn again(&self, role: Option<Role>) -> std::io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(self.behaviour.arguments(&self.mark, &self.beat));
        if let Some(role) = role {
            command.args(["--role", &name_of(&role)]);
        }
        // Without toolcrib's own mark: no other manager of this user may find and end what this one left.
        command.env(MARK, &self.mark).env_remove("TOOLCRIB_OWNER");
        Ok(command)
    }

    /// A process that nobody waits for, away from the server's pipes.
    fn leave_behind(&self, role: Role) -> std::io::Result<Child> {
        self.again(Some(role))?.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    fn serve(&self) -> std::io::Result<()> {
        match self.behaviour {
            Behaviour::Helper => drop(sleeper(Stdio::null())?),
            Behaviour::HelperHoldsStdout => drop(sleeper(Stdio::inherit())?),
            Behaviour::SetsidHelper => drop(self.leave_behind(Role::Session)?),
            Behaviour::Daemon => drop(self.leave_behind(Role::Daemon)?),
            Behaviour::ForkStorm => drop(self.leave_behind(Role::Storm)?),
            Behaviour::SessionHopper => drop(self.leave_behind(Role::Hopper)?),
            Behaviour::Everything => {
                drop(sleeper(Stdio::null())?);
                drop(self.leave_behind(Role::Daemon)?);
            }
            Behaviour::Polite
            | Behaviour::IgnoresEof
            | Behaviour::IgnoresEofAndTerm
            | Behaviour::BehindSh => {}
        }
        // Nobody is to end before the worst is there.
        while std::fs::metadata(&self.beat).map_or(0, |beat| beat.len()) < self.behaviour.signs() {
            sleep(HOP);
        }
        answer()?;
        while self.behaviour.ignores_eof() {
            sleep(FOREVER);
        }
        Ok(())
    }

    /// Leaves a sign of life.
    fn sign(&self) -> std::io::Result<()> {
        std::fs::OpenOptions::new().create(true).append(true).open(&self.beat)?.write_all(b".")
    }

    fn play(&self, role: Role) -> std::io::Result<()> {
        rustix::process::setsid()?;
        match role {
            Role::Session => {
                self.sign()?;
                loop {
                    sleep(FOREVER);
                }
            }
            // The child leaves the session in its turn: it is nobody's group and nobody's child.
            Role::Daemon => self.leave_behind(Role::Session).map(drop),
            Role::Storm => {
                ignore_term()?;
                let mut children: Vec<Child> = Vec::new();
                while children.len() < STORM {
                    children.extend(sleeper(Stdio::null()));
                }
                self.sign()?;
                loop {
                    children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
                    match children.len() {
                        // A full table of processes is no reason to end.
                        ..STORM => children.extend(sleeper(Stdio::null())),
                        _ => sleep(HOP),
                    }
                }
            }
            Role::Hopper => {
                let stop = self.beat.with_extension("stop");
                self.sign()?;
                sleep(HOP);
                if stop.exists() { Ok(()) } else { self.leave_behind(Role::Hopper).map(drop) }
            }
        }
    }
}

/// The name of a choice on the command line.
pub(super) fn name_of(choice: &impl ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Blocked, a signal stays pending for ever; what is blocked stays so across `exec`.
#[cfg(target_os = "linux")]
fn ignore_term() -> std::io::Result<()> {
    use nix::sys::signal::{SIGHUP, SIGTERM, SigSet};
    let mut signals = SigSet::empty();
    signals.add(SIGTERM);
    signals.add(SIGHUP);
    Ok(signals.thread_block()?)
}

#[cfg(not(target_os = "linux"))]
fn ignore_term() -> std::io::Result<()> {
    Err(std::io::Error::other("this behaviour needs Linux"))
}

fn sleeper(stdout: Stdio) -> std::io::Result<Child> {
    Command::new("sleep").arg("3600").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null()).spawn()
}

/// A tool server of the 2025-11-25 revision, until the end of its input.
fn answer() -> std::io::Result<()> {
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line?)?;
        let Some(id) = message.get("id").filter(|id| !id.is_null()) else { continue };
        let body = match message["method"].as_str().unwrap_or_default() {
            "initialize" => (
                "result",
                json!({
                    "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                    "serverInfo": {"name": "torture", "version": env!("CARGO_PKG_VERSION")},
                }),
            ),
            "ping" => ("result", json!({})),
            "tools/list" => (
                "result",
                json!({"tools": [{
                    "name": "echo", "description": "Says hello.", "inputSchema": {"type": "object"},
                }]}),
            ),
            "tools/call" => ("result", json!({"content": [{"type": "text", "text": "hello"}]})),
            method => ("error", json!({"code": -32601, "message": format!("no method {method}")})),
        };
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{}", json!({"jsonrpc": "2.0", "id": id, body.0: body.1}))?;
        stdout.flush()?;
    }
    Ok(())
}
