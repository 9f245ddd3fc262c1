//! One trial: start the program with one server, let it end in one way, and watch which processes are left.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, WaitStatus};
use toolcrib::CancellationToken;
use toolcrib_fakes::servers::stubborn::{BEATS, Behaviour, CALLED, MARK};

use super::{
    census::{self, Living, OWNER_MARK},
    children::Children,
    ending::End,
    program::Program,
    python::PythonEnvironment,
    row::{Forked, Row},
};

/// The variable that marks servers which are forked from a template, like [`MARK`]: their template has each variable that
/// begins so.
pub(super) const TEMPLATE_MARK: &str = "PYTHON_TORTURE";

/// How long a program may take until its server has answered a call.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long a process that was started may take to show its mark.
const SEEN_LIMIT: Duration = Duration::from_secs(10);
/// How long a program that is ready may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// How long no process must be seen before there is none: a look at all processes takes time.
const QUIET: Duration = Duration::from_millis(100);
/// The same for a hopper, which is seen by its beats: on a loaded machine they are far apart.
const QUIET_HOPPER: Duration = Duration::from_secs(1);
/// How long the clean-up of one trial may take.
const CLEANUP_LIMIT: Duration = Duration::from_secs(20);
/// Survivors that are named.
const NAMED: usize = 20;

/// State that all trials share. Dropping it ends all that is left of them.
pub(super) struct Rig {
    pub(super) program: Program,
    pub(super) wait: Duration,
    pub(super) stop: CancellationToken,
    /// The program of the servers.
    fakes: PathBuf,
    /// That of the forked servers.
    python: Option<PythonEnvironment>,
    run: String,
    folder: PathBuf,
    children: Children,
}

/// The outcome of a trial.
#[derive(Debug)]
pub(super) enum Outcome {
    /// No process is left since then, counted from the program's end.
    Clean { after: Duration },
    /// So many are left when the time is over, the first of them by name.
    Survived { count: usize, named: Vec<Living> },
    /// The program did not do its part.
    Failed { why: String },
}

/// Why a trial gives no count.
enum Broken {
    Failed(String),
    Stopped,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Rig {
    /// `python` is for servers that are forked.
    pub(super) fn new(
        program: Program,
        fakes: PathBuf,
        python: Option<PathBuf>,
        wait: Duration,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let run = format!("{:08x}", fastrand::u32(..));
        let folder = std::env::temp_dir().join(format!("toolcrib-torture-{run}"));
        fs::create_dir(&folder)?;
        // An abort would leave the image of its memory behind, which can be large.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
        let none = rustix::process::Rlimit { current: Some(0), maximum: limit.maximum };
        rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
        let mut rig =
            Self { program, wait, stop, fakes, python: None, run, folder, children: Children::adopt()? };
        rig.python =
            python.map(|python| PythonEnvironment::make(&python, rig.folder.join("python"))).transpose()?;
        Ok(rig)
    }

    /// Whether a marked process can be seen here.
    pub(super) fn can_see(&self) -> io::Result<bool> {
        let mut trial = Trial::open(self, "check", Row::Program(Behaviour::IgnoresEof))?;
        let mut command = std::process::Command::new(&self.fakes);
        command.args(&trial.server[1..]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        trial.owner = Some(self.children.spawn(&mut command)?);
        let seen = trial.poll(SEEN_LIMIT, || (!trial.left().is_empty()).then_some(()));
        Ok(matches!(seen, Ok(Some(()))))
    }

    /// One trial; nothing when it was stopped. What it started has ended when this returns.
    pub(super) fn run(&self, number: usize, row: Row, end: End) -> Option<Outcome> {
        let played = Trial::open(self, &number.to_string(), row)
            .map_err(Broken::from)
            .and_then(|mut trial| trial.play(end));
        match played {
            Ok(outcome) => Some(outcome),
            Err(Broken::Failed(why)) => Some(Outcome::Failed { why }),
            Err(Broken::Stopped) => None,
        }
    }

    /// Ends all that is left of all trials; says which processes did not end.
    pub(super) fn sweep(&self) -> Vec<u32> {
        // Without the folder a hopper stops.
        let _ = fs::remove_dir_all(&self.folder);
        self.children.sweep()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.sweep();
    }
}

struct Trial<'a> {
    rig: &'a Rig,
    folder: PathBuf,
    row: Row,
    /// The server's command line.
    server: Vec<String>,
    mark: String,
    owner_mark: String,
    owner: Option<Pid>,
}

impl<'a> Trial<'a> {
    fn open(rig: &'a Rig, name: &str, row: Row) -> io::Result<Self> {
        let folder = rig.folder.join(name);
        fs::create_dir(&folder)?;
        File::create(folder.join(BEATS))?;
        let mark = format!("{}-{name}", rig.run);
        let owner_mark = format!("{OWNER_MARK}={mark}");
        let (server, mark) = match row {
            Row::Program(behaviour) => {
                let (fakes, place) = (rig.fakes.to_string_lossy(), folder.to_string_lossy());
                let server = [&fakes, "stubborn", behaviour.name(), "--mark", &mark, "--folder", &place];
                (server.map(ToOwned::to_owned).to_vec(), format!("{MARK}={mark}"))
            }
            Row::Forked(forked) => {
                let python = rig.python.as_ref().ok_or_else(|| io::Error::other("there is no Python"))?;
                let server = [python.python(), python.script(forked)];
                (
                    server.map(|path| path.to_string_lossy().into_owned()).to_vec(),
                    format!("{TEMPLATE_MARK}={mark}"),
                )
            }
        };
        Ok(Self { rig, folder, row, server, mark, owner_mark, owner: None })
    }

    fn play(&mut self, end: End) -> Result<Outcome, Broken> {
        let value = self.owner_mark.split_once('=').map_or("", |(_, value)| value);
        let mut command = match self.row {
            Row::Program(_) => self.rig.program.command(&self.server, end, &[]),
            Row::Forked(forked) => self.rig.program.command(&self.server, end, &self.forking(forked, value)),
        };
        // Files, not pipes: they need no reader, and a process that keeps them open delays no reader.
        command
            .env(OWNER_MARK, value)
            .stdin(Stdio::null())
            .stdout(File::create(self.folder.join("stdout"))?)
            .stderr(File::create(self.folder.join("stderr"))?)
            // Ctrl-C is for the torture, which then ends the program.
            .process_group(0);
        let name = command.get_program().to_string_lossy().into_owned();
        let spawned = self.rig.children.spawn(&mut command);
        let owner =
            spawned.map_err(|error| Broken::Failed(format!("`{name}` could not be started: {error}")))?;
        self.owner = Some(owner);
        self.await_ready(owner)?;
        if let Some(signal) = end.signal() {
            self.rig.children.signal(owner, signal);
        }
        let over = || (self.rig.children.ended(owner).is_some() || self.said("ended")).then_some(());
        match self.poll(END_LIMIT, over)? {
            Some(()) => self.watch(),
            None => Err(self.failed(&format!("it was ready, but did not end within {END_LIMIT:?}"))),
        }
    }

    /// The words for an owner whose server is forked.
    fn forking(&self, forked: Forked, mark: &str) -> Vec<OsString> {
        let words = ["--forked", forked.name(), "--mark", mark, "--folder"].map(OsString::from);
        let paths = [self.folder.clone(), "--cache".into(), self.rig.folder.join("cache")];
        words.into_iter().chain(paths.map(PathBuf::into_os_string)).collect()
    }

    /// Waits until the server has answered a call of the program, by its own account and the program's.
    fn await_ready(&self, owner: Pid) -> Result<(), Broken> {
        let ready = self.poll(READY_LIMIT, || {
            // In this order: it may say it and end at once.
            let ended = self.rig.children.ended(owner);
            if self.said("ready") { Some(Ok(())) } else { ended.map(Err) }
        })?;
        match ready {
            Some(Ok(())) if self.folder.join(CALLED).exists() => Ok(()),
            Some(Ok(())) => Err(self.failed("it said `ready`, but its server was never called")),
            Some(Err(status)) => Err(self.failed(&format!("it {} before it said `ready`", describe(status)))),
            None => Err(self.failed(&format!("it did not say `ready` within {READY_LIMIT:?}"))),
        }
    }

    /// Looks until no process has been seen for a while, or the time is over.
    fn watch(&self) -> Result<Outcome, Broken> {
        let quiet = if self.row == Row::Program(Behaviour::SessionHopper) { QUIET_HOPPER } else { QUIET };
        let began = Instant::now();
        let mut beats = self.beats();
        let mut empty_since = None;
        loop {
            let left = self.left();
            let hops = self.beats() - beats;
            beats += hops;
            let now = began.elapsed();
            if left.is_empty() && hops == 0 {
                let since = *empty_since.get_or_insert(now);
                if now.saturating_sub(since) >= quiet {
                    return Ok(Outcome::Clean { after: since });
                }
            } else {
                empty_since = None;
                if now > self.rig.wait {
                    let named = left.iter().take(NAMED).map(|pid| census::describe(*pid)).collect();
                    // Between two hops no process is seen.
                    return Ok(Outcome::Survived { count: left.len().max(1), named });
                }
            }
            self.rest()?;
        }
    }

    fn left(&self) -> Vec<Pid> {
        census::marked(&[&self.mark])
    }

    fn beats(&self) -> u64 {
        fs::metadata(self.folder.join(BEATS)).map_or(0, |file| file.len())
    }

    fn said(&self, word: &str) -> bool {
        let text = fs::read(self.folder.join("stdout")).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().any(|line| line.trim() == word)
    }

    /// Looks again and again; nothing when `limit` has passed.
    fn poll<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Result<Option<T>, Broken> {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(Some(found));
            }
            if began.elapsed() > limit {
                return Ok(None);
            }
            self.rest()?;
        }
    }

    fn rest(&self) -> Result<(), Broken> {
        if self.rig.stop.is_cancelled() {
            return Err(Broken::Stopped);
        }
        thread::sleep(LOOK);
        Ok(())
    }

    /// A failure of the program, with its last words.
    fn failed(&self, what: &str) -> Broken {
        let text = fs::read(self.folder.join("stderr")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let last = text.lines().rev().find(|line| line.chars().any(char::is_alphanumeric));
        Broken::Failed(last.map_or(what.to_owned(), |line| format!("{what}: {}", line.trim())))
    }
}

impl Drop for Trial<'_> {
    /// Ends the program, its server and everything that either brought along, and waits until it is so.
    fn drop(&mut self) {
        // Without the folder a hopper stops.
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(owner) = self.owner {
            self.rig.children.end(owner);
        }
        let marks = [&*self.mark, &*self.owner_mark];
        let began = Instant::now();
        let mut empty_looks = 0;
        while empty_looks < 2 && began.elapsed() < CLEANUP_LIMIT {
            let left = census::marked(&marks);
            empty_looks = if left.is_empty() { empty_looks + 1 } else { 0 };
            for pid in left {
                census::kill(pid, &marks);
            }
            thread::sleep(LOOK);
        }
    }
}

/// How a program ended, in words.
fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
