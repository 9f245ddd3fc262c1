//! The log levels of servers of the old era. A server has one for all of its clients: the one that lets most of what they want
//! through; each client gets what it asked for.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;

use super::{
    Gateway,
    bridge::LogLevel,
    client::{Client, lock},
    router::Router,
    subscriptions::Upstream,
    upstream::send,
};
use crate::{
    config::Scope,
    json_rpc::RawObject,
    session::{Era, Session},
};

/// How long a server may take to set its level before requests go on without.
const LIMIT: Duration = Duration::from_secs(5);

/// The log levels that servers were told, and those that requests under way want.
#[derive(Default)]
pub(super) struct LogLevels {
    /// Whether any client has ever asked for a level.
    is_used: AtomicBool,
    known: Mutex<KnownLevels>,
}

#[derive(Default)]
struct KnownLevels {
    last: u64,
    /// Levels of requests of the new era under way.
    of_requests: HashMap<u64, (Upstream, LogLevel)>,
    /// The servers whose clients have asked for a level.
    set: HashMap<Upstream, ServerLevel>,
}

#[derive(Default)]
struct ServerLevel {
    /// The connection that was told last, and the level.
    told: Option<(u64, LogLevel)>,
    /// Held while the server is told: the last word is the right one.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The log messages of a request.
#[derive(Default)]
pub(super) struct RequestLog {
    /// The least important ones that are wanted, where the request says so.
    pub(super) least: Option<LogLevel>,
    /// Keeps the level of the server.
    _wanted: Option<WantedLevel>,
}

/// A level that a server of the old era is to have, until this is dropped.
struct WantedLevel {
    router: Arc<Router>,
    number: u64,
}

impl Drop for WantedLevel {
    fn drop(&mut self) {
        lock(&self.router.levels.known).of_requests.remove(&self.number);
    }
}

impl RequestLog {
    pub(super) fn of(least: Option<LogLevel>) -> Self {
        Self { least, _wanted: None }
    }
}

impl LogLevels {
    /// Whether a client of this server has ever asked for a level.
    pub(super) fn is_set(&self, of: &Upstream) -> bool {
        self.is_used.load(Relaxed) && lock(&self.known).set.contains_key(of)
    }

    /// The connection that was told last, and the level.
    fn told(&self, of: &Upstream) -> Option<(u64, LogLevel)> {
        lock(&self.known).set.get(of)?.told
    }

    /// A client is gone, and its own servers with it.
    pub(super) fn forget(&self, client: u64) {
        if self.is_used.load(Relaxed) {
            lock(&self.known).set.retain(|(_, own_of), _| *own_of != Some(client));
        }
    }
}

impl Gateway {
    /// A request of the new era wants log messages of a server of the old one.
    pub(super) async fn log_of_request(
        &self,
        of: &Upstream,
        session: &Arc<Session>,
        least: LogLevel,
    ) -> RequestLog {
        let router = self.router().clone();
        let number = {
            let mut known = lock(&router.levels.known);
            known.last += 1;
            let number = known.last;
            known.of_requests.insert(number, (of.clone(), least));
            number
        };
        router.levels.is_used.store(true, Relaxed);
        let wanted = WantedLevel { router, number };
        self.set_log_level(of, session).await;
        RequestLog { least: Some(least), _wanted: Some(wanted) }
    }

    /// A client has another level: its servers are told.
    pub(super) async fn log_level_changed(&self, servers: Vec<(Upstream, Option<Arc<Session>>)>) {
        let levels = &self.router().levels;
        levels.is_used.store(true, Relaxed);
        for (of, _) in &servers {
            // One that is not there yet is told once it is.
            lock(&levels.known).set.entry(of.clone()).or_default();
        }
        let told = servers.iter().filter_map(|(of, session)| Some(self.set_log_level(of, session.as_ref()?)));
        join_all(told).await;
    }

    /// Tells a new connection of a server the level before anything else.
    pub(super) async fn keep_log_level(&self, of: impl FnOnce() -> Upstream, session: &Arc<Session>) {
        let levels = &self.router().levels;
        if !levels.is_used.load(Relaxed) {
            return;
        }
        let of = of();
        let told = match lock(&levels.known).set.get(&of) {
            Some(level) => level.told.map(|(generation, _)| generation),
            None => return,
        };
        if told.is_none() || told != session.generation() {
            Box::pin(self.set_log_level(&of, session)).await;
        }
    }

    /// Tells servers that were restarted, or whose clients want something else by now.
    pub(super) async fn keep_log_levels(&self) {
        if !self.router().levels.is_used.load(Relaxed) {
            return;
        }
        let shared = self.lender().toolbox().sessions().into_iter().filter(|(_, own)| !own);
        let mut all: Vec<(Upstream, Arc<Session>)> =
            shared.map(|(session, _)| ((session.name().clone(), None), session)).collect();
        for client in self.router().clients() {
            let sessions = client.known_toolbox().map(|toolbox| toolbox.sessions()).unwrap_or_default();
            let own =
                sessions.into_iter().filter(|(session, own)| *own && client.endpoint.has(session.name()));
            all.extend(own.map(|(session, _)| ((session.name().clone(), Some(client.number)), session)));
        }
        join_all(all.iter().map(|(of, session)| self.set_log_level(of, session))).await;
    }

    /// The level that a server is to have. `None`: nobody has ever asked for one.
    fn wanted_log_level(&self, of: &Upstream) -> Option<LogLevel> {
        let router = self.router();
        let clients: Vec<Arc<Client>> = match of.1 {
            Some(number) => router.client(number).into_iter().collect(),
            None => router.clients().into_iter().filter(|client| client.endpoint.has(&of.0)).collect(),
        };
        let known = lock(&router.levels.known);
        let requests = known.of_requests.values().filter(|(at, _)| at == of).map(|(_, level)| *level);
        let set = clients.iter().filter_map(|client| *lock(&client.log_level));
        let wanted = LogLevel::most_verbose(requests.chain(set));
        // Others get what servers say by themselves.
        let silent =
            |client: &Arc<Client>| client.introduction().is_some() && lock(&client.log_level).is_none();
        match wanted {
            Some(level) if clients.iter().any(silent) => LogLevel::most_verbose([level, LogLevel::DEFAULT]),
            Some(level) => Some(level),
            None => known.set.contains_key(of).then_some(LogLevel::DEFAULT),
        }
    }

    /// Sees that a server sends the log messages that its clients want.
    async fn set_log_level(&self, of: &Upstream, session: &Arc<Session>) {
        let levels = &self.router().levels;
        if self.wanted_log_level(of).is_none() {
            return;
        }
        let turn = lock(&levels.known).set.entry(of.clone()).or_default().turn.clone();
        let _turn = turn.lock().await;
        let (Some(generation), Some(level)) = (session.generation(), self.wanted_log_level(of)) else {
            return;
        };
        if levels.told(of) == Some((generation, level)) {
            return;
        }
        if session.era() == Some(Era::Legacy) && logs(session) {
            let mut params = RawObject::default();
            params.write("level", &level);
            if let Err(error) = send(session, "logging/setLevel", &params, Some(LIMIT), 0).await {
                tracing::debug!(server = %session.name(), error = error.message.as_ref(), "the log level was not set");
            }
        }
        // One that does not do it is not told again and again.
        if let Some(known) = lock(&levels.known).set.get_mut(of) {
            known.told = Some((generation, level));
        }
    }
}

/// Whether a server that is there has log messages.
fn logs(session: &Session) -> bool {
    let capabilities: Option<RawObject> = session.hello().and_then(|hello| hello.read("capabilities"));
    capabilities.is_some_and(|known| known.get("logging").is_some())
}

/// The server of a session, and whose own it is, for this client.
pub(super) fn place_of(session: &Session, client: u64) -> Upstream {
    (session.name().clone(), (session.scope() != Scope::Shared).then_some(client))
}
