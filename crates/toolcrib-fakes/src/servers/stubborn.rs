//! `toolcrib-fakes stubborn`: a tool server that resists its end, and the helper processes that it starts.
//!
//! Each helper is this program again, started with `--part`. It writes a byte to its stderr, a pipe to its parent, once
//! it runs: the server answers its first call when all helpers run. No process lasts longer than `LIFETIME`, in case
//! `toolcrib-lab torture` itself is killed.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

use clap::{Parser, ValueEnum};
use nix::sys::signal::{SigSet, Signal};

pub use self::{behaviour::Behaviour, mcp::TOOL};

mod behaviour;
mod mcp;

/// The variable that a server puts into its own environment, and so into that of all it starts.
pub const MARK: &str = "TOOLCRIB_TORTURE";

/// How long a process lasts that is not ended.
const LIFETIME: Duration = Duration::from_secs(600);
/// Sleepers of a storm.
const STORM: usize = 400;
/// How long a hopper stays in one process.
const HOP: Duration = Duration::from_millis(2);
/// Hops that take about [`LIFETIME`].
const HOPS: u64 = 200_000;
/// The file in the run's folder that says that a tool was called.
pub const CALLED: &str = "called";
/// The file in the run's folder that grows by a byte with each hop.
pub const BEATS: &str = "beats";

/// One server of the torture, as its arguments say.
#[derive(Parser)]
#[command(name = "toolcrib-fakes stubborn", no_binary_name = true)]
struct Stubborn {
    /// The behaviour that makes it hard to end.
    behaviour: Behaviour,
    /// Put into the environment of every process, which the client may have filtered.
    #[arg(long)]
    mark: String,
    /// Where calls and hops are noted.
    #[arg(long)]
    folder: PathBuf,
    /// Which process of the family this is.
    #[arg(long, value_enum, default_value_t)]
    part: Part,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Part {
    #[default]
    Server,
    /// Sleeps.
    Helper,
    /// Sleeps, deaf to the signals that ask a process to end.
    Deaf,
    /// Sleeps in a session of its own.
    Session,
    /// Starts a helper in a new session and exits.
    Fork,
    /// Keeps sleepers alive.
    Storm,
    /// Goes on in a copy of itself.
    Hop,
}

/// Runs this process: the server, or one of its helpers.
pub fn main(words: impl Iterator<Item = OsString>) -> ExitCode {
    let stubborn = Stubborn::parse_from(words);
    match stubborn.play() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "stubborn {}: {error}", stubborn.behaviour.name());
            ExitCode::FAILURE
        }
    }
}

impl Stubborn {
    fn play(&self) -> io::Result<()> {
        match self.part {
            Part::Server if std::env::var(MARK).is_ok_and(|mark| mark == self.mark) => self.serve(),
            Part::Server => Err(self.start_again_marked()),
            Part::Helper => sleep(),
            Part::Deaf => {
                block_signals()?;
                sleep()
            }
            Part::Session => {
                rustix::process::setsid()?;
                sleep()
            }
            Part::Fork => {
                rustix::process::setsid()?;
                self.bring(Part::Helper, Stdio::null())?;
                stand()
            }
            Part::Storm => {
                rustix::process::setsid()?;
                block_signals()?;
                storm()
            }
            Part::Hop => {
                rustix::process::setsid()?;
                block_signals()?;
                self.hop()
            }
        }
    }

    /// Executes this program again with the mark in its environment: `/proc` shows the environment that a process was started
    /// with.
    fn start_again_marked(&self) -> io::Error {
        let again = std::env::current_exe().map(|program| {
            let mut command = if self.behaviour.wrapped() {
                // The second command keeps the shell from making way for the first.
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "\"$@\"; exit $?", "sh"]).arg(program);
                shell
            } else {
                Command::new(program)
            };
            self.describe(&mut command, Part::Server);
            // Without toolcrib's own mark: no other manager of this user may find and end what one left behind.
            command.env(MARK, &self.mark).env_remove("TOOLCRIB_OWNER");
            command
        });
        match again {
            Ok(mut command) => command.exec(),
            Err(error) => error,
        }
    }

    fn describe(&self, command: &mut Command, part: Part) {
        let part = part.to_possible_value().map(|value| value.get_name().to_owned());
        command
            .args(["stubborn", self.behaviour.name(), "--mark", &self.mark, "--folder"])
            .arg(&self.folder)
            .arg("--part")
            .args(part);
    }

    fn command(&self, part: Part) -> io::Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        self.describe(&mut command, part);
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn serve(&self) -> io::Result<()> {
        if self.behaviour.ignores_term() {
            block_signals()?;
        }
        match self.behaviour {
            Behaviour::Polite
            | Behaviour::IgnoresEof
            | Behaviour::IgnoresEofAndTerm
            | Behaviour::BehindSh => {}
            Behaviour::Helper => drop(self.bring(Part::Helper, Stdio::null())?),
            Behaviour::DeafHelper => drop(self.bring(Part::Deaf, Stdio::null())?),
            Behaviour::SetsidHelper => drop(self.bring(Part::Session, Stdio::null())?),
            Behaviour::HelperHoldsStdout => drop(self.bring(Part::Helper, Stdio::inherit())?),
            Behaviour::Daemon => drop(self.bring(Part::Fork, Stdio::null())?.wait()?),
            Behaviour::ForkStorm => drop(self.bring(Part::Storm, Stdio::null())?),
            Behaviour::SessionHopper => drop(self.bring(Part::Hop, Stdio::null())?.wait()?),
            Behaviour::Everything => {
                self.bring(Part::Helper, Stdio::null())?;
                self.bring(Part::Fork, Stdio::null())?.wait()?;
            }
        }
        mcp::serve(|| OpenOptions::new().create(true).append(true).open(self.folder.join(CALLED)).map(drop))?;
        if self.behaviour.ignores_eof() {
            thread::sleep(LIFETIME);
        }
        Ok(())
    }

    /// Starts a helper and waits until it runs.
    fn bring(&self, part: Part, stdout: Stdio) -> io::Result<Child> {
        let mut child = self.command(part)?.stdout(stdout).stderr(Stdio::piped()).spawn()?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            stderr.take(1).read_to_end(&mut said)?;
        }
        match said.is_empty() {
            false => Ok(child),
            true => Err(io::Error::other(format!("a part ended at once: {}", child.wait()?))),
        }
    }

    /// One beat, and on in a new process. It ends with the folder, which the torture takes away.
    fn hop(&self) -> io::Result<()> {
        let mut beats = OpenOptions::new().append(true).open(self.folder.join(BEATS))?;
        beats.write_all(b".")?;
        stand()?;
        thread::sleep(HOP);
        if beats.metadata()?.len() < HOPS {
            self.command(Part::Hop)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        }
        Ok(())
    }
}

/// Tells the parent that this process runs. Later copies have no parent that listens.
fn stand() -> io::Result<()> {
    io::stderr().write_all(b".")
}

fn sleep() -> io::Result<()> {
    stand()?;
    thread::sleep(LIFETIME);
    Ok(())
}

/// Blocked signals stay blocked in processes that are started from here.
fn block_signals() -> io::Result<()> {
    let deaf: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    Ok(deaf.thread_block()?)
}

/// Starts a sleeper for each one that dies.
fn storm() -> io::Result<()> {
    let seconds = LIFETIME.as_secs().to_string();
    let mut sleepers = 0;
    let mut stands = false;
    loop {
        while sleepers < STORM {
            let sleeper = Command::new("sleep")
                .arg(&seconds)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn();
            match sleeper {
                Ok(_) => sleepers += 1,
                Err(error) if !stands => return Err(error),
                // No process can be had at this moment.
                Err(_) => thread::sleep(HOP),
            }
        }
        if !stands {
            stand()?;
            stands = true;
        }
        rustix::process::wait(rustix::process::WaitOptions::empty())?;
        sleepers -= 1;
    }
}
