//! The daemon's beginning, by whoever needs it first.

use std::{
    ffi::OsString,
    thread::sleep,
    time::{Duration, Instant},
};

use super::{DaemonClient, DaemonOptions, DaemonPlace, client::LOOK};
use crate::{
    error::{Error, ErrorCode, Result, Told},
    process::Detached,
};

/// How long a daemon may take to be there once it was started.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A daemon that was reached, and whether it had to be started.
pub struct Spawned {
    /// The connection.
    pub client: DaemonClient,
    /// Whether this command started it.
    pub started: bool,
}

impl DaemonClient {
    /// Connects to the daemon at `place`, and starts one by `options` if there is none.
    ///
    /// # Errors
    /// As [`DaemonClient::connect`]; and when the daemon ended early: with its last words.
    pub fn reach(place: &DaemonPlace, options: &DaemonOptions) -> Result<Spawned> {
        let deadline = Instant::now() + START_LIMIT;
        let mut child: Option<Detached> = None;
        let mut started = false;
        loop {
            if let Some(client) = Self::connect(place)? {
                // Two may have been started at once: one of them has the lock, and it is the one that greets.
                return Ok(Spawned { client, started });
            }
            match &mut child {
                None if !place.is_taken() => {
                    let log = place.open_log();
                    let begun = log.and_then(|log| Detached::start(&arguments(options), log));
                    child = Some(begun.map_err(|error| Error::io("could not start the daemon", error))?);
                    started = true;
                }
                None => {}
                Some(running) => match running.ended() {
                    Some(status) if status.success() => child = None,
                    Some(_) => return Err(early_end(place)),
                    None => {}
                },
            }
            if Instant::now() >= deadline {
                let what = "the daemon is not there yet".to_owned();
                let help = Some(format!("it writes to {}", place.log().display()));
                return Err(Told::error(ErrorCode::StartupTimeout, what, help));
            }
            sleep(LOOK);
        }
    }
}

/// The hidden command that is the daemon.
fn arguments(options: &DaemonOptions) -> Vec<OsString> {
    let DaemonOptions { config, only, jobs, locked, idle, lenient } = options;
    let mut arguments: Vec<OsString> = vec!["daemon".into(), "--config".into(), config.into()];
    for server in only.iter().flatten() {
        arguments.extend(["--server".into(), server.as_str().into()]);
    }
    arguments.extend(jobs.iter().flat_map(|jobs| ["--jobs".into(), jobs.to_string().into()]));
    let idle =
        idle.iter().flat_map(|idle| ["--idle".into(), humantime::format_duration(*idle).to_string().into()]);
    arguments.extend(idle);
    arguments.extend(locked.then(|| "--locked".into()));
    arguments.extend(lenient.then(|| "--lenient".into()));
    arguments
}

/// The last words of a daemon that ended before it could be reached.
fn early_end(place: &DaemonPlace) -> Error {
    let text = std::fs::read_to_string(place.log()).unwrap_or_default();
    let lines: Vec<String> = text.lines().rev().take(5).map(ToOwned::to_owned).collect();
    let mut told = Told::new(ErrorCode::Internal, "the daemon ended before it could be reached");
    told.stderr_tail = lines.into_iter().rev().collect();
    Error::Told(Box::new(told))
}
