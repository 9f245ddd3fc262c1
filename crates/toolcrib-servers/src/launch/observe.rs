//! Finds the program that a package runner has started, through `/proc`. Without `/proc` there is nothing to be seen,
//! and servers stay with their runners.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{Runner, RunnerProcess};
use crate::process::{ENVIRONMENT_MAX, beginning};

/// Processes that may stand between a runner and its program: itself, a shell, itself once more.
const DEPTH: usize = 6;
const SHELLS: &[&str] = &["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// A process as it was started.
#[derive(Debug)]
pub(super) struct ObservedProcess {
    /// Its executable, without symbolic links.
    pub(super) exe: PathBuf,
    /// The name that it was started by, and its arguments.
    pub(super) argv: Vec<String>,
    pub(super) cwd: PathBuf,
    pub(super) env: BTreeMap<String, String>,
}

/// The program that `runner`, which is `live`, has started and handed its standard input on to. Nothing below
/// that program is looked at: what it starts itself is its own affair.
///
/// # Errors
/// Why that cannot be told.
pub(super) fn look(runner: &Runner, live: RunnerProcess) -> Result<ObservedProcess, String> {
    let input = live.input.ok_or("its standard input cannot be determined")?;
    let mut pid = live.pid;
    for depth in 0..DEPTH {
        let seen = ObservedProcess::of(pid).ok_or("its process cannot be inspected")?;
        // All but pipx stay, and wait for their program; pipx becomes it.
        let stays = depth == 0 && runner.name != "pipx run";
        if !stays && !seen.is_between() {
            return Ok(seen);
        }
        // A helper that was given another input is not the server.
        let heirs: Vec<u32> = children(pid).into_iter().filter(|child| holds(*child, input)).collect();
        pid = match heirs[..] {
            [heir] => heir,
            [] => return Err("the runner has no child that reads the server's input".to_owned()),
            _ => return Err("several processes read the server's input".to_owned()),
        };
    }
    Err("too many processes stand between the runner and its program".to_owned())
}

impl ObservedProcess {
    fn of(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        // Nothing where there is more: of a part no start can be repeated.
        let text = |name: &str| {
            let text = beginning(folder.join(name), ENVIRONMENT_MAX).ok()?;
            String::from_utf8(text).ok().filter(|text| text.len() < ENVIRONMENT_MAX)
        };
        let cmdline = text("cmdline")?;
        let environ = text("environ")?;
        let variables = environ.split_terminator('\0').filter_map(|variable| variable.split_once('='));
        Some(Self {
            exe: fs::read_link(folder.join("exe")).ok()?,
            argv: cmdline.strip_suffix('\0').unwrap_or(&cmdline).split('\0').map(str::to_owned).collect(),
            cwd: fs::read_link(folder.join("cwd")).ok()?,
            env: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        })
    }

    /// Whether it only waits for the program: a shell with a command, or a runner.
    fn is_between(&self) -> bool {
        let name =
            |path: &Path| path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let called = self.argv.first().map_or("", String::as_str);
        let shell = SHELLS.contains(&name(Path::new(called)).as_str());
        let runs_command = shell && self.argv.get(1).is_some_and(|word| word == "-c");
        // npm writes what it does in place of its name.
        let npm = called.starts_with("npm exec") || called.starts_with("npm x ");
        let pipx = self.argv.iter().take(3).any(|word| name(Path::new(word)) == "pipx");
        runs_command || npm || pipx || matches!(name(&self.exe).as_str(), "uv" | "uvx")
    }
}

/// Children of a process: those of each of its threads.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Whether process `pid` has the pipe open, as any descriptor: some servers move their standard input.
fn holds(pid: u32, pipe: u64) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    files.filter_map(|file| fs::metadata(file.path()).ok()).any(|file| file.ino() == pipe && is_pipe(&file))
}

fn is_pipe(file: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    file.file_type().is_fifo()
}
