//! Resources that clients watch: one subscription at a server for all clients of it.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Gateway,
    client::{Client, ListenFilter, Listening, RequestContext, lock},
    exchange::{Outgoing, refusal},
    hello::meta_key,
};
use crate::{
    config::Scope,
    json_rpc::{self, RawObject},
    session::{ClientAnswer, Era, ForwardedRequest, Session},
    tool::ServerName,
};

/// Resources that one client may watch.
const MAX_WATCHED: usize = 1000;
/// How long an open subscription of the new era may last. It is renewed then.
const LISTEN_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause before a subscription that ended is asked for again.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// Who watches what.
#[derive(Default)]
pub(super) struct Subscriptions(Mutex<HashMap<Upstream, Watched>>);

/// A server, and the client whose own it is if it is not shared.
type Upstream = (ServerName, Option<u64>);

#[derive(Default)]
struct Watched {
    /// The numbers of the clients.
    uris: HashMap<String, HashSet<u64>>,
    session: Option<Arc<Session>>,
    /// The connection at which the subscriptions were made.
    generation: Option<u64>,
    /// Holds the subscription at a server of the new era.
    listening: Option<AbortOnDropHandle<()>>,
}

/// A change that the server is to hear of.
enum Change {
    None,
    First,
    Last,
}

impl Subscriptions {
    /// Whether a client watches a resource of a server.
    pub(super) fn has(&self, client: u64, server: &ServerName, uri: &str) -> bool {
        let all = lock(&self.0);
        [None, Some(client)].into_iter().any(|own| {
            let watched = all.get(&(server.clone(), own)).and_then(|watched| watched.uris.get(uri));
            watched.is_some_and(|clients| clients.contains(&client))
        })
    }

    fn add(
        &self,
        of: &Upstream,
        session: &Arc<Session>,
        client: u64,
        uri: &str,
    ) -> Result<Change, ErrorData> {
        let mut all = lock(&self.0);
        let watches =
            |watched: &Watched| watched.uris.values().filter(|clients| clients.contains(&client)).count();
        if all.values().map(watches).sum::<usize>() >= MAX_WATCHED {
            return Err(ErrorData::invalid_request(
                format!("a client can watch {MAX_WATCHED} resources"),
                None,
            ));
        }
        let watched = all.entry(of.clone()).or_default();
        watched.session = Some(session.clone());
        watched.generation = session.generation();
        let clients = watched.uris.entry(uri.to_owned()).or_default();
        let first = clients.is_empty();
        clients.insert(client);
        Ok(if first { Change::First } else { Change::None })
    }

    fn remove(&self, of: &Upstream, client: u64, uri: &str) -> Change {
        let mut all = lock(&self.0);
        let Some(watched) = all.get_mut(of) else { return Change::None };
        let Some(clients) = watched.uris.get_mut(uri) else { return Change::None };
        if !clients.remove(&client) || !clients.is_empty() {
            return Change::None;
        }
        watched.uris.remove(uri);
        if watched.uris.is_empty() {
            all.remove(of);
        }
        Change::Last
    }

    /// A client is gone. Its resources are not watched for it any more; servers of the old era hear so when nobody else
    /// watches them.
    pub(super) fn forget(&self, client: u64) {
        let mut all = lock(&self.0);
        all.retain(|_, watched| {
            let legacy =
                watched.session.as_ref().filter(|session| session.era() == Some(Era::Legacy)).cloned();
            watched.uris.retain(|uri, clients| {
                let gone = clients.remove(&client) && clients.is_empty();
                if gone && let Some(session) = &legacy {
                    unsubscribe_later(session.clone(), uri.clone());
                }
                !gone
            });
            !watched.uris.is_empty()
        });
    }

    /// At a server of the new era one open request stands for all resources.
    fn listen_anew(&self, of: &Upstream, session: &Arc<Session>) {
        let mut all = lock(&self.0);
        let Some(watched) = all.get_mut(of) else { return };
        let uris: BTreeSet<String> = watched.uris.keys().cloned().collect();
        #[expect(clippy::disallowed_methods, reason = "what is watched has the handle that aborts it")]
        let task = tokio::spawn(listen(session.clone(), uris));
        watched.listening = Some(AbortOnDropHandle::new(task));
    }

    /// Servers that have another connection than the one at which resources were watched.
    fn reconnected(&self) -> Vec<(Arc<Session>, Vec<String>)> {
        let mut all = lock(&self.0);
        let anew = |watched: &mut Watched| {
            let session = watched.session.clone()?;
            let now = session.generation()?;
            let changed = watched.generation.replace(now) != Some(now);
            let legacy = session.era() == Some(Era::Legacy);
            (changed && legacy).then(|| (session, watched.uris.keys().cloned().collect()))
        };
        all.values_mut().filter_map(anew).collect()
    }
}

/// Tells a server that nobody watches a resource any more.
fn unsubscribe_later(session: Arc<Session>, uri: String) {
    // One request, whose end nobody waits for, bounded by its limit.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(async move { drop(request(&session, "resources/unsubscribe", &uri).await) }));
    }
}

async fn request(session: &Session, method: &str, uri: &str) -> ClientAnswer {
    let (mut params, meta) = (RawObject::default(), RawObject::default());
    params.write("uri", &uri);
    send(session, method, &params, &meta, None).await
}

async fn send(
    session: &Session,
    method: &str,
    params: &RawObject,
    meta: &RawObject,
    limit: Option<Duration>,
) -> ClientAnswer {
    let request = ForwardedRequest { method, params, meta, tool: None, limit, progress: None, exchange: 0 };
    session.forward(request).await.map_or_else(|error| Err(refusal(&error)), |forwarded| forwarded.answer)
}

/// Keeps a subscription of the new era open.
async fn listen(session: Arc<Session>, uris: BTreeSet<String>) {
    let (mut params, meta) = (RawObject::default(), RawObject::default());
    params.write("notifications", &json!({"resourceSubscriptions": uris}));
    loop {
        let ended = send(&session, "subscriptions/listen", &params, &meta, Some(LISTEN_LIMIT)).await;
        if let Err(error) = ended
            && error.code.0 != rmcp::model::ErrorCode::INTERNAL_ERROR.0
        {
            return tracing::debug!(server = %session.name(), error = %error.message, "no resource is watched");
        }
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}

impl Gateway {
    /// Watches again what was watched at a server that has been restarted.
    pub(super) async fn watch_again(&self) {
        for (session, uris) in self.router().subscriptions.reconnected() {
            for uri in uris {
                if let Err(error) = request(&session, "resources/subscribe", &uri).await {
                    tracing::warn!(server = %session.name(), uri, error = %error.message, "is not watched any more");
                }
            }
        }
    }
}

impl RequestContext<'_> {
    /// Begins or ends to watch a resource, for a client of the old era.
    pub(super) async fn subscribe(&self, params: &RawObject, begin: bool) -> ClientAnswer {
        let Some(uri) = params.read::<String>("uri") else {
            return Err(ErrorData::invalid_params("`uri` is missing", None));
        };
        self.watch(uri, begin).await?;
        Ok(RawObject::default().into_raw())
    }

    async fn watch(&self, mut uri: String, begin: bool) -> Result<(), ErrorData> {
        let server = match &self.client.endpoint.only {
            Some(server) => server.clone(),
            None => self.server_of_resource(&mut uri, &RawObject::default()).await?,
        };
        let session = self.toolbox().await.awake(server.as_str()).await.map_err(|error| refusal(&error))?;
        let own = (session.scope() != Scope::Shared).then_some(self.client.number);
        let of = (server, own);
        let subscriptions = &self.client.gateway.router().subscriptions;
        let change = match begin {
            true => subscriptions.add(&of, &session, self.client.number, &uri)?,
            false => subscriptions.remove(&of, self.client.number, &uri),
        };
        let method = match change {
            Change::None => return Ok(()),
            Change::First => "resources/subscribe",
            Change::Last => "resources/unsubscribe",
        };
        if session.era() == Some(Era::Modern) {
            subscriptions.listen_anew(&of, &session);
            return Ok(());
        }
        let mut params = RawObject::default();
        params.write("uri", &uri);
        let outgoing =
            Outgoing { session, method: method.to_owned(), params, meta: RawObject::default(), tool: None };
        let outcome = self.exchange(outgoing, None).await;
        if outcome.is_err() && begin {
            subscriptions.remove(&of, self.client.number, &uri);
        }
        outcome.map(drop)
    }

    /// Tells a client of the new era of changes until it cancels this request.
    pub(super) async fn listen(&self, params: &RawObject) -> ClientAnswer {
        if self.speaker.era != Era::Modern {
            return Err(Self::no_such_method("subscriptions/listen"));
        }
        let Some(mut filter) = params.read::<ListenFilter>("notifications") else {
            return Err(ErrorData::invalid_params("`notifications` says what to listen to", None));
        };
        let mut watched = WatchedByListener { context: self, uris: Vec::new() };
        for uri in std::mem::take(&mut filter.resource_subscriptions) {
            // What cannot be watched is left out of the acknowledgement.
            if self.watch(uri.clone(), true).await.is_ok() {
                watched.uris.push(uri);
            }
        }
        filter.resource_subscriptions.clone_from(&watched.uris);
        let acknowledged = RawObject::parse(Some(&json_rpc::raw(&json!({"notifications": filter}))));
        let (id, key, outlet) = (self.id.to_owned(), self.key.clone(), self.outlet.clone());
        let listening = Listening { id, key, filter, outlet };
        listening.tell("notifications/subscriptions/acknowledged", acknowledged.unwrap_or_default());
        lock(&self.client.listening).push(listening);
        let _registered = Registered { client: self.client, key: &self.key };
        self.client.gateway.draining().cancelled().await;
        let id: Value = serde_json::from_str(self.id.get()).unwrap_or_default();
        Ok(json_rpc::raw(&json!({"resultType": "complete", "_meta": {meta_key::SUBSCRIPTION: id}})))
    }
}

/// The resources of one listener. They are not watched any more when it is dropped.
struct WatchedByListener<'a, 'b> {
    context: &'a RequestContext<'b>,
    uris: Vec<String>,
}

impl Drop for WatchedByListener<'_, '_> {
    fn drop(&mut self) {
        let client = self.context.client;
        let subscriptions = &client.gateway.router().subscriptions;
        for uri in &self.uris {
            let others = lock(&client.listening);
            let mut wanted = others.iter().flat_map(|one| &one.filter.resource_subscriptions);
            if !wanted.any(|one| one == uri) {
                drop(others);
                subscriptions.stop_watching(client.number, uri);
            }
        }
    }
}

impl Subscriptions {
    /// A client does not watch a resource any more, on any server.
    fn stop_watching(&self, client: u64, uri: &str) {
        let mut all = lock(&self.0);
        all.retain(|_, watched| {
            let Some(clients) = watched.uris.get_mut(uri) else { return true };
            if clients.remove(&client) && clients.is_empty() {
                watched.uris.remove(uri);
                if let Some(session) = watched.session.as_ref().filter(|it| it.era() == Some(Era::Legacy)) {
                    unsubscribe_later(session.clone(), uri.to_owned());
                }
            }
            !watched.uris.is_empty()
        });
    }
}

/// A listener that is told, until this is dropped.
struct Registered<'a> {
    client: &'a Client,
    key: &'a str,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.client.listening).retain(|one| &*one.key != self.key);
    }
}
