//! Runs the daemon: it owns its socket and lock, serves any number of clients, and ends without leftovers.
//!
//! All of it happens in one future. Clients borrow the servers; at the end their futures are dropped, which
//! cancels what they were waiting for, and only then the servers are torn down.

use std::{
    collections::BTreeSet,
    future::pending,
    path::PathBuf,
    pin::pin,
    sync::{PoisonError, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use crate::cancel::CancellationToken;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::SetOnce,
    time::{sleep, timeout},
};

use super::{
    DaemonPlace,
    answer::{First, Hall, Voice},
    keep::{Change, Keep},
    place::Lock,
    wire::{DaemonReply, Greeting, PROTOCOL, Request, Terms},
};
use crate::{
    config::{Env, Secrets, StartJobs},
    error::{Error, Result},
    gateway::Gateway,
    manager::Borrower,
    process::{Line, LineReader, is_sandboxed, leave_session, new_mark},
    start::StopReport,
    tool::ServerName,
};

/// Clients at once: each is a file of this process.
const CLIENTS: usize = 512;
/// How long a client may take to read its last frame, once the daemon ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// How a daemon is started.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DaemonOptions {
    /// The configuration file.
    pub config: PathBuf,
    /// Only these servers. `None`: all.
    pub only: Option<BTreeSet<ServerName>>,
    /// Servers that may start at once; `None`: as configured.
    pub jobs: Option<StartJobs>,
    /// Refuses servers whose tools the lockfile does not have, or has otherwise.
    pub locked: bool,
    /// Ends after this time without a request. `None`: never.
    pub idle: Option<Duration>,
    /// Goes on without servers that are `required`.
    pub lenient: bool,
}

impl DaemonOptions {
    /// A daemon for `config` that stays until it is told to end.
    pub fn new(config: impl Into<PathBuf>) -> Self {
        Self { config: config.into(), only: None, jobs: None, locked: false, idle: None, lenient: false }
    }
}

/// How a guest leaves.
enum Leave {
    /// It has what it wanted.
    Content,
    /// It wants the daemon to end.
    Down(Voice, Option<Duration>),
    /// It wants the place for another daemon.
    Retire(Voice),
}

/// Why the daemon ends.
enum DaemonEnd {
    /// Nobody is there to be told.
    Quietly,
    Down(Voice, Option<Duration>),
    Retire(Voice),
}

/// Is the daemon of one configuration until it is told to end, by a client or by `stop`. All servers are torn
/// down before it returns. `None`: another process is the daemon.
///
/// Leaves the session of the process, so that a terminal's end does not concern it.
///
/// # Errors
/// When the configuration cannot be read or the place cannot be used, before anything was started.
pub async fn serve_daemon(
    options: DaemonOptions,
    env: Env,
    stop: CancellationToken,
) -> Result<Option<StopReport>> {
    leave_session();
    let place = DaemonPlace::of(&options.config, &env)?;
    let failed = |error| Error::io(format!("could not be the daemon at {}", place.socket().display()), error);
    let Some(lock) = place.lock().map_err(failed)? else { return Ok(None) };
    // Until then the lock has the word of the one that was here before, and is known as abandoned by that.
    DaemonPlace::leave_word(&lock, &new_mark()).map_err(failed)?;
    // What an earlier daemon had to say is of no use any more.
    let _ = place.open_log().and_then(|log| log.set_len(0));
    let keep =
        Keep::new(options.config.clone(), env, options.only.clone(), options.jobs, options.locked).await;
    let ready = keep.and_then(|keep| {
        DaemonPlace::leave_word(&lock, keep.0.manager().mark()).map_err(failed)?;
        Ok((keep, place.bind(&lock).map_err(failed)?))
    });
    let ((keep, changes), listener) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            place.leave(lock);
            return Err(error);
        }
    };
    let hall = Hall {
        keep,
        since: Instant::now(),
        clients: 0.into(),
        idle: options.idle.into(),
        first: SetOnce::new(),
        draining: CancellationToken::new(),
    };
    let (end, lock) = {
        let mut life =
            Life { hall: &hall, guests: FuturesUnordered::new(), place: &place, lenient: options.lenient };
        let mut leading = pin!(life.lead(listener, lock, &stop));
        tokio::select! {
            ended = &mut leading => ended,
            // Does not end before: the other end of its channel is in `hall`.
            () = hall.keep.work(changes, |rule| place.warn(rule)) => leading.await,
        }
    };
    let report = hall.keep.shutdown().await;
    if let DaemonEnd::Down(mut voice, _) = end {
        let _ = timeout(FAREWELL, voice.say(&DaemonReply::Down(report.clone()))).await;
    }
    if let Some(lock) = lock {
        place.abandon(lock);
    }
    Ok(Some(report))
}

type Guests<'a> = FuturesUnordered<futures_util::future::BoxFuture<'a, Leave>>;

/// What goes on while the daemon is there.
struct Life<'a> {
    hall: &'a Hall,
    guests: Guests<'a>,
    place: &'a DaemonPlace,
    lenient: bool,
}

impl Life<'_> {
    /// Serves guests until the end, which leaves none. The lock is given back unless the place went to another.
    async fn lead(
        &mut self,
        listener: UnixListener,
        lock: Lock,
        stop: &CancellationToken,
    ) -> (DaemonEnd, Option<Lock>) {
        let end = self.serve(&listener, stop).await;
        drop(listener);
        let end = match end {
            DaemonEnd::Retire(mut voice) => {
                self.place.leave(lock);
                self.hall.draining.cancel();
                let terms = self.terms();
                let _ = timeout(FAREWELL, voice.say(&DaemonReply::Retired(terms))).await;
                drop(voice);
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = self.until_alone() => {}
                }
                return (DaemonEnd::Quietly, None);
            }
            end => end,
        };
        self.place.close_door();
        if let DaemonEnd::Down(_, Some(grace)) = &end {
            self.hall.draining.cancel();
            let _ = timeout(*grace, self.until_alone()).await;
        }
        self.guests.clear();
        (end, Some(lock))
    }

    async fn serve(&mut self, listener: &UnixListener, stop: &CancellationToken) -> DaemonEnd {
        let hall = self.hall;
        let mut starting = pin!(hall.begin(self.lenient));
        let mut busy = Instant::now();
        let mut failed: Option<Instant> = None;
        loop {
            if !self.guests.is_empty() {
                busy = Instant::now();
            }
            let idle = *hall.idle.lock().unwrap_or_else(PoisonError::into_inner);
            hall.clients.store(self.guests.len(), Relaxed);
            tokio::select! {
                () = stop.cancelled() => return DaemonEnd::Quietly,
                accepted = listener.accept(), if self.guests.len() < CLIENTS => match accepted {
                    Ok((stream, _)) => self.guests.push(Box::pin(hall.receive(stream))),
                    // Out of files, say: those who are here leave some.
                    Err(_) => sleep(Duration::from_millis(100)).await,
                },
                Some(leave) = self.guests.next() => match leave {
                    Leave::Content if failed.is_some() && self.guests.is_empty() => return DaemonEnd::Quietly,
                    Leave::Content => {}
                    Leave::Down(voice, grace) => return DaemonEnd::Down(voice, grace),
                    Leave::Retire(voice) => return DaemonEnd::Retire(voice),
                },
                fails = &mut starting, if !hall.first.initialized() => failed = fails.then(Instant::now),
                // The starter gets the reason before the end.
                () = until_idle(failed.unwrap_or(busy), Some(FAREWELL)), if failed.is_some() => return DaemonEnd::Quietly,
                () = until_idle(busy, idle), if self.guests.is_empty() => return DaemonEnd::Quietly,
            }
        }
    }

    /// Returns once no guest is left.
    async fn until_alone(&mut self) {
        while self.guests.next().await.is_some() {
            self.hall.clients.store(self.guests.len(), Relaxed);
        }
    }

    fn terms(&self) -> Terms {
        let book = self.hall.keep.book();
        let some = book.selection.only.is_some() || !book.selection.stopped.is_empty();
        Terms {
            calls: self.hall.keep.manager().status().iter().map(|server| server.in_flight).sum(),
            idle: *self.hall.idle.lock().unwrap_or_else(PoisonError::into_inner),
            only: some.then(|| book.wanted().cloned().collect()),
            locked: book.config.lock_file.is_some(),
        }
    }
}

async fn until_idle(busy: Instant, idle: Option<Duration>) {
    match idle {
        Some(idle) => sleep((busy + idle).saturating_duration_since(Instant::now())).await,
        None => pending().await,
    }
}

impl Hall {
    /// The first start. Says whether it ends the daemon.
    async fn begin(&self, lenient: bool) -> bool {
        let only = self.keep.book().selection.only.clone().unwrap_or_default();
        let changed = self.keep.change(Change::Start(only.into_iter().collect())).await;
        let book = self.keep.book();
        let required =
            |server: &ServerName| book.config.servers.get(server).is_some_and(|entry| entry.required);
        let failures: Vec<_> = match &changed {
            Ok(_) if lenient => Vec::new(),
            Ok(_) => {
                let rows = self.keep.manager().status();
                rows.into_iter().filter(|row| required(&row.name)).filter_map(|row| row.error).collect()
            }
            Err(error) => vec![std::sync::Arc::new(Error::Remote(Box::new(error.into())))],
        };
        let fails = !failures.is_empty();
        let took = changed.ok().and_then(|changed| changed.took);
        // Set here alone, and once.
        let _ = self.first.set(First { took, failures });
        fails
    }

    /// Serves one client until it leaves.
    async fn receive(&self, stream: UnixStream) -> Leave {
        let own = rustix::process::geteuid().as_raw();
        let peer = stream.peer_cred().map(|peer| peer.uid());
        let sandboxed = is_sandboxed(&stream);
        let (read, write) = stream.into_split();
        let (mut reader, mut voice) = (LineReader::new(read), Voice { write, secrets: Secrets::default() });
        if peer.ok() != Some(own) {
            let help = Some("each user has daemons of their own".to_owned());
            voice.say(&DaemonReply::Error(Error::input("this daemon serves another user", help))).await;
            return Leave::Content;
        }
        // It would do for a server what the server's sandbox refuses. One of which nothing can be told may be one.
        if sandboxed.unwrap_or(true) {
            let help = Some("call it from outside of the sandbox".to_owned());
            let what = "this daemon serves no process in the sandbox of a tool server";
            voice.say(&DaemonReply::Error(Error::input(what, help))).await;
            return Leave::Content;
        }
        self.keep.begun().await;
        voice.secrets = self.keep.book().config.secrets.clone();
        voice.say(&DaemonReply::Greeting(self.greeting())).await;
        loop {
            let line = tokio::select! {
                line = reader.next() => line,
                () = self.draining.cancelled() => return Leave::Content,
            };
            let request = match line {
                None => return Leave::Content,
                Some(Line::Whole(line)) => serde_json::from_slice::<Request>(line),
                // There is no telling where the next request begins.
                Some(Line::TooLong { .. } | Line::Torn { .. } | Line::Endless { .. }) => {
                    let error = Error::input("the request is longer than 16 MiB", None);
                    voice.say(&DaemonReply::Error(error)).await;
                    return Leave::Content;
                }
            };
            let request = match request {
                Ok(Request::Down { grace }) => return Leave::Down(voice, grace),
                Ok(Request::Retire) => return Leave::Retire(voice),
                Ok(Request::Connect { server }) => {
                    self.connect(server, reader, voice).await;
                    return Leave::Content;
                }
                Ok(request) => request,
                Err(error) => {
                    let error = Error::input(format!("the request cannot be parsed: {error}"), None);
                    voice.say(&DaemonReply::Error(error)).await;
                    continue;
                }
            };
            // Work that was begun is finished; who only listens is not waited for.
            let listens = matches!(request, Request::Logs { .. } | Request::Wait { .. } | Request::Up { .. });
            tokio::select! {
                biased;
                () = self.answer(request, &mut voice) => {}
                // A client that is gone gets no answer: dropping the future cancels its call.
                more = reader.next() => if more.is_none() { return Leave::Content } else {
                    let error = Error::input("one request after the other", None);
                    voice.say(&DaemonReply::Error(error)).await;
                    return Leave::Content;
                },
                () = self.draining.cancelled(), if listens => return Leave::Content,
            }
        }
    }

    /// Becomes an MCP server for one client.
    async fn connect(&self, server: Option<String>, reader: LineReader, mut voice: Voice) {
        let only = match server.map(|server| self.keep.server(&server)).transpose() {
            Ok(only) => only,
            Err(error) => return voice.say(&DaemonReply::Error(error)).await,
        };
        voice.say(&DaemonReply::Connected).await;
        let loan = self.keep.manager().lend(Borrower::Client);
        let gateway = Gateway::new(loan.toolbox(), only, self.keep.log.follow(), self.draining.clone());
        gateway.serve(reader.into_stream(), voice.write).await;
    }

    fn greeting(&self) -> Greeting {
        Greeting {
            protocol: PROTOCOL,
            toolcrib: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            mark: self.keep.manager().mark().to_owned(),
            config: self.keep.file().to_owned(),
            edition: self.keep.book().edition.clone(),
            locked: self.keep.book().config.lock_file.is_some(),
        }
    }
}
