//! The `--daemon` and `--no-daemon` options, and the connection to the daemon that commands share.

use std::{cmp::Ordering, path::PathBuf, time::Duration};

use clap::Args;
use toolcrib::{
    Config, Env, Error,
    daemon::{DaemonClient, DaemonOptions, DaemonPlace},
    trust::Trust,
};

use crate::cli::{
    context::{Context, Locked},
    terminal::ui::counted,
};

/// How long a daemon stays that was started on demand.
pub(crate) const IDLE: Duration = Duration::from_secs(30 * 60);

/// Whether a command goes through the daemon.
#[derive(Args)]
pub(crate) struct DaemonArgs {
    /// Use a daemon, and start one if none runs; it ends after 30 minutes without work. Without this option a running
    /// daemon is used; if none runs, the needed servers are started for this command only.
    #[arg(long, env = "TOOLCRIB_DAEMON", value_parser = clap::builder::BoolishValueParser::new())]
    daemon: bool,
    /// Do not use a daemon, even if TOOLCRIB_DAEMON is set.
    #[arg(long)]
    no_daemon: bool,
}

impl DaemonArgs {
    /// The daemon, if this command is to go through one. What it is to do without configuration is told by the
    /// command itself.
    pub(crate) fn connect(&self, context: &Context<'_>) -> Result<Option<DaemonClient>, Error> {
        // A daemon has the servers of no profile.
        if self.no_daemon || (context.profile.is_some() && !self.daemon) {
            return Ok(None);
        }
        if context.profile.is_some() {
            return Err(without_profile());
        }
        let Ok((place, file)) = place(context) else { return Ok(None) };
        if let Some(client) = running(context, &place, &file)? {
            context.by_hand_through_daemon(&file);
            return Ok(Some(client));
        }
        if !self.daemon {
            return Ok(None);
        }
        context.by_hand_through_daemon(&file);
        start(context, &place, file, (false, false)).map(Some)
    }

    /// The daemon for a client that nobody looks at, started if none runs. With `locked` it has to hold its servers to the lockfile.
    pub(crate) fn connect_or_start(context: &Context<'_>, locked: Locked) -> Result<DaemonClient, Error> {
        let (place, file) = place(context)?;
        Trust::of(&Env::process()).require(&file)?;
        match running(context, &place, &file)? {
            Some(client) if locked.is_set() && !client.greeting().locked => {
                Err(Error::daemon_not_locked(client.greeting().pid))
            }
            Some(client) => Ok(client),
            None => start(context, &place, file, (locked.is_set(), true)),
        }
    }
}

/// Starts a daemon that ends when it is not needed any more.
fn start(
    context: &Context<'_>,
    place: &DaemonPlace,
    file: PathBuf,
    (locked, trusted): (bool, bool),
) -> Result<DaemonClient, Error> {
    let mut options = DaemonOptions::new(file);
    options.idle = Some(IDLE);
    (options.locked, options.trusted) = (locked, trusted);
    options.lenient = true;
    let reached = DaemonClient::reach(place, &options)?;
    if reached.started {
        let pid = reached.client.greeting().pid;
        context
            .ui
            .status("Started", format!("a daemon for later commands (pid {pid}, until 30m without work)"));
    }
    Ok(reached.client)
}

/// The place of the daemon for this command's configuration, and that file.
pub(crate) fn place(context: &Context<'_>) -> Result<(DaemonPlace, PathBuf), Error> {
    if context.profile.is_some() {
        return Err(without_profile());
    }
    let env = Env::process();
    let file = Config::locate(context.config.as_deref(), &env)?;
    Ok((DaemonPlace::of(&file, &env)?, file))
}

/// A daemon serves the servers of the whole file.
fn without_profile() -> Error {
    Error::input("a daemon knows no profile", Some("leave out --profile".to_owned()))
}

/// The daemon that runs, for a command after which it may go over to an edited file.
pub(crate) fn required_by_hand(context: &Context<'_>) -> Result<DaemonClient, Error> {
    let client = required(context)?;
    context.by_hand_through_daemon(&place(context)?.1);
    Ok(client)
}

/// The daemon that runs.
pub(crate) fn required(context: &Context<'_>) -> Result<DaemonClient, Error> {
    let (place, file) = place(context)?;
    running(context, &place, &file)?.ok_or_else(|| Error::no_daemon(&file))
}

/// The daemon that runs, if one does. One of an older version is replaced.
pub(crate) fn running(
    context: &Context<'_>,
    place: &DaemonPlace,
    file: &std::path::Path,
) -> Result<Option<DaemonClient>, Error> {
    let Some(client) = DaemonClient::connect(place)? else { return Ok(None) };
    let theirs = client.greeting().toolcrib.clone();
    let ours = env!("CARGO_PKG_VERSION");
    if compare(ours, &theirs) == Ordering::Greater {
        return replace(context, place, file, client).map(Some);
    }
    tracing::debug!(pid = client.greeting().pid, "a daemon runs for this configuration");
    if !client.speaks_our_version() {
        let help = "use that version, or end it: toolcrib down".to_owned();
        return Err(Error::input(format!("the daemon is of toolcrib {theirs}, this is {ours}"), Some(help)));
    }
    Ok(Some(client))
}

fn replace(
    context: &Context<'_>,
    place: &DaemonPlace,
    file: &std::path::Path,
    old: DaemonClient,
) -> Result<DaemonClient, Error> {
    // The next one reads the file.
    context.by_hand_through_daemon(file);
    let greeting = old.greeting().clone();
    let terms = old.retire()?;
    let calls = match terms.calls {
        0 => String::new(),
        1 => ", which finishes 1 call".to_owned(),
        calls => format!(", which finishes {}", counted(calls, "call")),
    };
    let (version, pid) = (&greeting.toolcrib, greeting.pid);
    let ours = env!("CARGO_PKG_VERSION");
    context.ui.status("Replacing", format!("the daemon of toolcrib {version} (pid {pid}{calls}) by {ours}"));
    let mut options = DaemonOptions::new(file);
    options.idle = terms.idle;
    (options.locked, options.trusted) = (terms.locked, terms.trusted);
    options.only = terms.only.map(|only| only.into_iter().collect());
    options.lenient = true;
    options.metrics = terms.metrics;
    DaemonClient::reach(place, &options).map(|reached| reached.client)
}

/// Versions by their numbers.
fn compare(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(['.', '-', '+']).take(3).map(|part| part.parse().unwrap_or(0)).collect()
    };
    numbers(one).cmp(&numbers(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(compare("0.10.0", "0.9.3"), Ordering::Greater);
        assert_eq!(compare("1.0.0-rc.1", "1.0.0"), Ordering::Equal);
        assert_eq!(compare("0.1.0", "0.1.1"), Ordering::Less);
    }
}
