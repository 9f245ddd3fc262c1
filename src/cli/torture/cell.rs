//! One cell of the table: start an owner with its server, let it end, and see who survives.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::{
    owner::End,
    server::{Behaviour, MARK, name_of},
};

/// How long an owner may take to be ready, and to end.
const OWNER_LIMIT: Duration = Duration::from_secs(30);
/// For so long nobody may show a sign of life before a hopper counts as gone.
const SILENCE: Duration = Duration::from_millis(300);

/// What is run in a cell.
#[derive(Clone)]
pub(super) struct Setup {
    /// This executable.
    pub(super) own: PathBuf,
    /// Command of a foreign owner, with placeholders.
    pub(super) foreign: Option<String>,
    /// Whether toolcrib's own owner does without guards.
    pub(super) no_guard: bool,
    /// How long survivors may take to disappear.
    pub(super) wait: Duration,
}

/// What came out.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nobody was left, after so long.
    Clean(Duration),
    /// So many were left when the time was over.
    Survivors(usize),
    /// There was nothing to judge.
    OwnerFailed(String),
}

/// Whoever carries the mark; those who still do are killed with their owner.
struct Marked {
    mark: String,
    folder: PathBuf,
    owner: Option<u32>,
}

pub(super) async fn run(setup: &Setup, behaviour: Behaviour, end: End) -> Outcome {
    match attempt(setup, behaviour, end).await {
        Ok(outcome) => outcome,
        Err(error) => Outcome::OwnerFailed(format!("{error:#}")),
    }
}

async fn attempt(setup: &Setup, behaviour: Behaviour, end: End) -> anyhow::Result<Outcome> {
    let mut marked = Marked::new()?;
    let server = behaviour.command(&setup.own, &marked.mark, &marked.beat());
    let (mut owner, words) = marked.start_owner(setup, &server, end)?;
    let stdout = owner.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    wait_for(&mut lines, "ready", &words).await?;
    match end.signal() {
        Some(signal) => {
            let pid = owner.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
            kill_process(pid.ok_or_else(|| anyhow::anyhow!("the owner ended by itself"))?, signal)?;
            anyhow::ensure!(
                timeout(OWNER_LIMIT, owner.wait()).await.is_ok(),
                "the owner did not end on {signal:?}"
            );
        }
        None => {
            // It says that it is over, or it is over.
            let over = async {
                while matches!(lines.next_line().await, Ok(Some(line)) if line.trim() != "ended") {}
            };
            anyhow::ensure!(timeout(OWNER_LIMIT, over).await.is_ok(), "the owner did not come to its end");
        }
    }
    marked.judge(behaviour, setup.wait).await
}

async fn wait_for(
    lines: &mut tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    word: &str,
    words: &Arc<Mutex<String>>,
) -> anyhow::Result<()> {
    let waiting = async {
        while let Some(line) = lines.next_line().await? {
            if line.trim() == word {
                return Ok(true);
            }
        }
        anyhow::Ok(false)
    };
    let said = || words.lock().unwrap_or_else(PoisonError::into_inner).trim().to_owned();
    match timeout(OWNER_LIMIT, waiting).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(anyhow::anyhow!("the owner ended before it said `{word}`: {}", said())),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(anyhow::anyhow!("the owner did not say `{word}` within {OWNER_LIMIT:?}: {}", said())),
    }
}

impl Marked {
    fn new() -> anyhow::Result<Self> {
        let mark = format!("{:016x}", fastrand::u64(..));
        let folder = std::env::temp_dir().join(format!("toolcrib-torture-{mark}"));
        std::fs::create_dir(&folder)?;
        Ok(Self { mark, folder, owner: None })
    }

    /// The file in which hoppers leave their signs of life.
    fn beat(&self) -> PathBuf {
        self.folder.join("beat")
    }

    fn beats(&self) -> u64 {
        std::fs::metadata(self.beat()).map_or(0, |file| file.len())
    }

    /// The owner, and what it writes to stderr.
    fn start_owner(
        &mut self,
        setup: &Setup,
        server: &[String],
        end: End,
    ) -> anyhow::Result<(Child, Arc<Mutex<String>>)> {
        let mut command = match &setup.foreign {
            None => {
                let mut command = Command::new(&setup.own);
                command.arg("torture-owner").arg("--end").arg(name_of(&end));
                command.args(setup.no_guard.then_some("--no-guard")).arg("--").args(server);
                command.env(MARK, &self.mark);
                command
            }
            Some(foreign) => {
                // The shell makes way, so that a signal to the owner is one.
                let mut command = Command::new("/bin/sh");
                command.arg("-c").arg(format!("exec {}", fill(foreign, server, end)?));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut owner = command.kill_on_drop(true).spawn()?;
        self.owner = owner.id();
        let words = Arc::<Mutex<String>>::default();
        let mut stderr = owner.stderr.take().expect("stderr is piped");
        let heard = words.clone();
        #[expect(
            clippy::disallowed_methods,
            reason = "ends with the owner's stderr, which the judgement ends"
        )]
        tokio::spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                if heard.len() < 4096 {
                    heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
                }
            }
        });
        Ok((owner, words))
    }

    /// Waits for everybody to be gone.
    async fn judge(&self, behaviour: Behaviour, wait: Duration) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        loop {
            let mut left = self.alive().len();
            if left == 0 && behaviour == Behaviour::SessionHopper {
                // One that changes its process all the time is easily overlooked.
                let (then, gone_at) = (self.beats(), began.elapsed());
                tokio::time::sleep(SILENCE).await;
                left = self.alive().len().max(usize::from(self.beats() != then));
                if left == 0 {
                    return Ok(Outcome::Clean(gone_at));
                }
            }
            match left {
                0 => return Ok(Outcome::Clean(began.elapsed())),
                left if began.elapsed() >= wait => return Ok(Outcome::Survivors(left)),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }

    /// Marked processes apart from the owner. A zombie has no environment.
    fn alive(&self) -> Vec<u32> {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
        ids.filter(|pid| Some(*pid) != self.owner && self.has(*pid)).collect()
    }

    fn has(&self, pid: u32) -> bool {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let entry = format!("{MARK}={}", self.mark);
        environment.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
    }

    fn kill(&self, pid: u32) {
        let Some(id) = Pid::from_raw(pid.cast_signed()) else { return };
        let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else { return };
        // Looked at once more: the handle keeps its process, the number alone could have changed hands.
        if self.has(pid) {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
    }
}

impl Drop for Marked {
    /// What the torture left behind is the torturer's to clear away.
    fn drop(&mut self) {
        let _ = std::fs::write(self.folder.join("beat.stop"), "");
        let mut quiet = 0;
        // Twice nobody in a row: somebody may have been about to start somebody else.
        for _ in 0..1000 {
            let left = self.alive();
            quiet = if left.is_empty() { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
            for pid in left {
                self.kill(pid);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A foreign command with its placeholders filled in.
fn fill(template: &str, server: &[String], end: End) -> anyhow::Result<String> {
    let quoted: Vec<String> = server.iter().map(|word| quote(word)).collect();
    let as_json = quote(&serde_json::to_string(server)?);
    Ok(template
        .replace("{server_json}", &as_json)
        .replace("{server}", &quoted.join(" "))
        .replace("{end}", &name_of(&end)))
}

/// A word for a POSIX shell.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Whether this system lets survivors be counted.
pub(super) fn can_count() -> bool {
    Path::new("/proc/self/environ").exists()
}
