//! Measures a start without toolcrib: spawns servers, does the handshake and reads their tools, with nothing but pipes
//! and `poll`. No SDK, no runtime, no guard, no care.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, kill_process_group},
};
use toolcrib::{Config, Endpoint, Error, StdioConfig, process::find_program};

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{},"clientInfo":{"name":"bare","version":"0"}}}"#,
    "\n"
);
const LIST: &str = concat!(
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
    r#"{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}"#,
    "\n"
);

/// Longest silence of all servers together.
const SILENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The servers of a bare start. Dropping it kills them.
pub(super) struct Bare {
    began: Instant,
    servers: Vec<Server>,
    /// When each server that answered was ready, the first one first.
    pub(super) ready: Vec<Duration>,
    /// When all were ready.
    pub(super) wall: Duration,
}

struct Server {
    child: Child,
    input: Option<ChildStdin>,
    /// The read end of its stdout. `None` once it is ready or has ended.
    output: Option<File>,
    read: Vec<u8>,
}

/// The state of a server, as far as its output shows it.
enum ServerOutput {
    Nothing,
    Tools,
    End,
}

impl Bare {
    /// Starts all servers that are processes, at most `jobs` at a time. Blocks until all have answered.
    pub(super) fn start(config: &Config, jobs: usize) -> anyhow::Result<Self> {
        let servers = config.servers.values().filter_map(|entry| entry.server.as_ref().ok());
        let specs = servers.filter_map(|server| match &server.endpoint {
            Endpoint::Stdio(spec) => Some(spec),
            _ => None,
        });
        let mut bare =
            Self { began: Instant::now(), servers: Vec::new(), ready: Vec::new(), wall: Duration::ZERO };
        let mut left = specs.peekable();
        let mut starting = 0;
        while starting > 0 || left.peek().is_some() {
            while starting < jobs
                && let Some(spec) = left.next()
            {
                bare.servers.push(Server::spawn(spec)?);
                starting += 1;
            }
            starting -= bare.hear()?;
        }
        bare.wall = bare.began.elapsed();
        Ok(bare)
    }

    /// Waits for news; says how many starts have come to an end.
    fn hear(&mut self) -> anyhow::Result<usize> {
        let mut waiting: Vec<&mut Server> =
            self.servers.iter_mut().filter(|server| server.output.is_some()).collect();
        let mut polls: Vec<PollFd<'_>> = waiting
            .iter()
            .filter_map(|server| server.output.as_ref())
            .map(|output| PollFd::new(output, PollFlags::IN))
            .collect();
        anyhow::ensure!(poll(&mut polls, Some(&SILENCE))? > 0, "no server writes anything any more");
        let news: Vec<bool> = polls.iter().map(|poll| !poll.revents().is_empty()).collect();
        let mut ended = 0;
        for (server, _) in waiting.iter_mut().zip(news).filter(|(_, news)| *news) {
            match server.hear()? {
                ServerOutput::Nothing => continue,
                ServerOutput::Tools => self.ready.push(self.began.elapsed()),
                ServerOutput::End => {}
            }
            server.output = None;
            ended += 1;
        }
        Ok(ended)
    }

    /// Ends input, waits as long as a stop ladder would, and kills what is left.
    pub(super) fn stop(mut self) {
        for server in &mut self.servers {
            server.input = None;
        }
        let deadline = Instant::now() + toolcrib::config::StopGrace::default().eof;
        for server in &mut self.servers {
            while Instant::now() < deadline && matches!(server.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Its group may outlive it.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Server {
    fn spawn(spec: &StdioConfig) -> Result<Self, Error> {
        let program = find_program(spec)?;
        let failed = |error| Error::io(format!("could not start {}", program.display()), error);
        // Like ours: an environment and a process group of its own.
        let mut child = Command::new(&program)
            .args(&spec.args)
            .env_clear()
            .envs(&*spec.env)
            .current_dir(&spec.cwd)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take().map(|output| File::from(OwnedFd::from(output)));
        let mut server = Self { input: child.stdin.take(), child, output, read: Vec::new() };
        server.say(INITIALIZE).map_err(failed)?;
        Ok(server)
    }

    fn say(&mut self, text: &str) -> io::Result<()> {
        self.input.as_mut().map_or(Ok(()), |input| input.write_all(text.as_bytes()))
    }

    fn hear(&mut self) -> io::Result<ServerOutput> {
        let Some(output) = &mut self.output else { return Ok(ServerOutput::End) };
        let mut part = [0; 1 << 14];
        let count = output.read(&mut part)?;
        if count == 0 {
            return Ok(ServerOutput::End);
        }
        self.read.extend_from_slice(&part[..count]);
        while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.read.drain(..=end).collect();
            match answer_to(&line) {
                Some(1) => self.say(LIST)?,
                Some(2) => return Ok(ServerOutput::Tools),
                _ => {}
            }
        }
        Ok(ServerOutput::Nothing)
    }
}

/// The id of the request that a line answers.
fn answer_to(line: &[u8]) -> Option<u64> {
    #[derive(serde::Deserialize)]
    struct Answer {
        id: Option<u64>,
        #[serde(default)]
        method: Option<serde::de::IgnoredAny>,
    }
    let answer: Answer = serde_json::from_slice(line).ok()?;
    answer.id.filter(|_| answer.method.is_none())
}
