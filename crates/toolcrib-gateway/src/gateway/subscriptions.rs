//! Resources that clients watch: one subscription at a server for all clients of it.

mod registry;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use rmcp::model::ErrorData;
use serde_json::{Value, json};
use tokio::{sync::watch, time::timeout};

use self::registry::{All, Change, Watched, Watcher};
use super::{
    Gateway,
    client::{Client, RequestContext, lock},
    exchange::Outgoing,
    hello::meta_key,
    listening::{ListenFilter, Listening},
    log_levels::place_of,
    upstream::{Standing, UpstreamListener, send},
};
use crate::{
    json_rpc::{self, RawObject},
    session::{ClientAnswer, Era, Session},
    tool::ServerName,
};

/// Resources that one client may watch.
const MAX_WATCHED: usize = 1000;
/// Bytes of the URI of one.
const MAX_URI: usize = 8 << 10;
/// Bytes that one takes besides its names.
const OF_WATCHER: usize = 512;
/// How long a server of the new era may take to acknowledge a subscription before it is taken for one that does not.
const ACKNOWLEDGE_LIMIT: Duration = Duration::from_secs(10);

/// Who watches what.
#[derive(Default)]
pub(super) struct Subscriptions(Mutex<All>);

/// A server, and the client whose own it is if it is not shared.
pub(super) type Upstream = (ServerName, Option<u64>);

/// A resource that a client watches from now on, at a server of the new era.
struct Begun {
    of: Upstream,
    session: Arc<Session>,
    /// The server's own name.
    uri: String,
}

impl Subscriptions {
    /// The name by which a client that watches a resource of a server knows it. `None`: it does not watch it.
    pub(super) fn name_at(&self, client: u64, server: &ServerName, uri: &str) -> Option<String> {
        let all = lock(&self.0);
        [None, Some(client)].into_iter().find_map(|own| {
            let watched = all.servers.get(&(server.clone(), own))?;
            Some(watched.uris.get(uri)?.get(&client)?.name.clone())
        })
    }

    /// Adds a resource that `client` knows by the second name.
    fn add(
        &self,
        of: &Upstream,
        session: &Arc<Session>,
        client: &Client,
        (uri, name): (&str, &str),
    ) -> Result<Change, ErrorData> {
        // A resource is known by the server's name, too, and to the server's listener.
        let held = client.endpoint.budget.take(OF_WATCHER + 2 * name.len() + 4 * uri.len())?;
        let watcher = Watcher { name: name.to_owned(), _held: held };
        let client = client.number;
        let mut all = lock(&self.0);
        let names = all.clients.entry(client).or_default();
        if names.len() >= MAX_WATCHED && !names.contains_key(name) {
            return Err(too_many());
        }
        let (at, place) = (&mut names.entry(name.to_owned()).or_default().at, (of.clone(), uri.to_owned()));
        if !at.contains(&place) {
            at.push(place);
        }
        // The connection of an entry that is there says which of its resources are to be watched again.
        let watched = all
            .servers
            .entry(of.clone())
            .or_insert_with(|| Watched { generation: session.generation(), ..Watched::default() });
        let before = watched.session.replace(session.clone());
        if before.is_some_and(|before| !Arc::ptr_eq(&before, session)) {
            watched.generation = None;
        }
        let clients = watched.uris.entry(uri.to_owned()).or_default();
        let first = clients.is_empty();
        clients.insert(client, watcher);
        Ok(if first { Change::First } else { Change::None })
    }

    fn remove(&self, of: &Upstream, client: u64, uri: &str) -> Change {
        lock(&self.0).remove(of, client, uri)
    }

    /// A client is gone. Its resources are not watched for it any more; servers of the old era hear so when nobody else
    /// watches them.
    pub(super) fn forget(&self, client: u64) {
        let mut all = lock(&self.0);
        for (name, named) in all.clients.remove(&client).unwrap_or_default() {
            all.leave(client, &name, named);
        }
    }

    /// One more request of a client listens to what it knows by `name`.
    fn hold(&self, client: u64, name: &str) {
        let mut all = lock(&self.0);
        if let Some(named) = all.named(client, name) {
            named.listeners += 1;
        }
    }

    /// A request listens no more to what is watched on.
    fn let_go(&self, client: u64, name: &str) {
        let mut all = lock(&self.0);
        if let Some(named) = all.named(client, name) {
            named.listeners = named.listeners.saturating_sub(1);
        }
        all.tidy(client, name);
    }

    /// A request that listened does so no more. What none listens to is not watched any more, on any server.
    fn release(&self, client: u64, name: &str) {
        let mut all = lock(&self.0);
        let Some(names) = all.clients.get_mut(&client) else { return };
        let Some(named) = names.get_mut(name) else { return };
        named.listeners = named.listeners.saturating_sub(1);
        if named.listeners > 0 {
            return;
        }
        let named = names.remove(name).unwrap_or_default();
        if names.is_empty() {
            all.clients.remove(&client);
        }
        all.leave(client, name, named);
    }

    /// At a server of the new era one open request stands for all resources: a new one if the open one is for others.
    fn listen_anew(&self, of: &Upstream, session: &Arc<Session>, number: u64, exactly: bool) {
        let mut all = lock(&self.0);
        let Some(watched) = all.servers.get_mut(of) else { return };
        let uris: BTreeSet<String> = watched.uris.keys().cloned().collect();
        if !exactly && watched.listening.as_ref().is_some_and(|open| open.is_for(&uris)) {
            return;
        }
        let last = watched.listening.replace(UpstreamListener::open(session, number, uris));
        if let Some(last) = last.filter(UpstreamListener::is_acknowledged) {
            watched.before = Some(last);
        }
    }

    /// A server has acknowledged the request with this number.
    pub(super) fn acknowledged(&self, number: u64, params: &RawObject) {
        let filter: ListenFilter = params.read("notifications").unwrap_or_default();
        for watched in lock(&self.0).servers.values_mut() {
            if let Some(open) = watched.listening.as_ref().filter(|open| open.number == number) {
                open.acknowledge(filter.resource_subscriptions.into_iter().collect());
                watched.before = None;
                return;
            }
        }
    }

    /// The server's word on the newest request that listens. `None`: there is no such request.
    fn standing(&self, of: &Upstream) -> Option<watch::Receiver<Standing>> {
        lock(&self.0).servers.get(of)?.listening.as_ref().map(UpstreamListener::standing)
    }

    /// Waits until a server of the new era says that it will tell of changes of a resource.
    async fn told_of(&self, of: &Upstream, uri: &str) -> Result<(), ErrorData> {
        while let Some(mut standing) = self.standing(of) {
            let said = standing.wait_for(|standing| !matches!(standing, Standing::Asked)).await;
            match said.as_deref() {
                Ok(Standing::Acknowledged(uris)) if uris.contains(uri) => return Ok(()),
                Ok(Standing::Acknowledged(_)) => {
                    let why = format!("the server does not tell of changes of `{uri}`");
                    return Err(ErrorData::invalid_params(why, None));
                }
                Ok(Standing::Refused(error)) => return Err(error.clone()),
                // Another request has taken its place.
                Ok(Standing::Asked) | Err(_) => {}
            }
        }
        // Nobody watches it any more.
        Ok(())
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
        all.servers.values_mut().filter_map(anew).collect()
    }
}

fn too_many() -> ErrorData {
    ErrorData::invalid_request(format!("a client can watch {MAX_WATCHED} resources"), None)
}

/// Tells a server that nobody watches a resource any more.
fn unsubscribe_later(session: Arc<Session>, uri: String) {
    // One request, whose end nobody waits for, bounded by its limit.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        drop(runtime.spawn(async move { drop(request(&session, "resources/unsubscribe", &uri).await) }));
    }
}

async fn request(session: &Session, method: &str, uri: &str) -> ClientAnswer {
    let mut params = RawObject::default();
    params.write("uri", &uri);
    send(session, method, &params, Some(ACKNOWLEDGE_LIMIT), 0).await
}

impl Gateway {
    /// Watches again what was watched at servers that have been restarted.
    pub(super) async fn watch_again(&self) {
        let again = self.router().subscriptions.reconnected().into_iter().map(|(session, uris)| async move {
            for uri in uris {
                if let Err(error) = request(&session, "resources/subscribe", &uri).await {
                    tracing::warn!(server = %session.name(), uri, error = %error.message, "is not watched any more");
                }
            }
        });
        join_all(again).await;
    }
}

impl RequestContext<'_> {
    /// Begins or ends to watch a resource, for a client of the old era.
    pub(super) async fn subscribe(&self, params: &RawObject, begin: bool) -> ClientAnswer {
        let Some(uri) = params.read::<String>("uri") else {
            return Err(ErrorData::invalid_params("`uri` is missing", None));
        };
        if !begin {
            self.stop_watching(uri).await?;
        } else if let Some(begun) = self.begin_to_watch(&uri).await? {
            let mut watched = WatchedByListener { context: self, uris: Vec::new() };
            watched.push(uri);
            self.wait_for_servers(vec![begun]).await.into_iter().collect::<Result<(), _>>()?;
            // It is watched on.
            watched.keep();
        }
        Ok(RawObject::default().into_raw())
    }

    /// The server of a resource, which becomes its name there.
    async fn place_of(&self, uri: &mut String) -> Result<(Upstream, Arc<Session>), ErrorData> {
        let server = match &self.client.endpoint.only {
            Some(server) => server.clone(),
            None => self.server_of_resource(uri, &RawObject::default()).await?,
        };
        let session =
            self.toolbox().await?.awake(server.as_str()).await.map_err(|error| self.refusal(&error))?;
        Ok((place_of(&session, self.client.number), session))
    }

    /// Begins to watch a resource. A server of the new era is to acknowledge it yet.
    async fn begin_to_watch(&self, name: &str) -> Result<Option<Begun>, ErrorData> {
        if name.len() > MAX_URI {
            let why = format!("the URI has {} bytes: {MAX_URI} are allowed", name.len());
            return Err(ErrorData::invalid_params(why, None));
        }
        let mut uri = name.to_owned();
        let (of, session) = self.place_of(&mut uri).await?;
        let subscriptions = &self.client.gateway.router().subscriptions;
        let change = subscriptions.add(&of, &session, self.client, (&uri, name))?;
        if session.era() == Some(Era::Modern) {
            return Ok(Some(Begun { of, session, uri }));
        }
        if matches!(change, Change::First) {
            let outcome = self.tell_of_watching(session, "resources/subscribe", &uri).await;
            if outcome.is_err() {
                subscriptions.remove(&of, self.client.number, &uri);
            }
            outcome?;
        }
        Ok(None)
    }

    /// Waits until servers of the new era have acknowledged that they will tell of changes; for each resource whether
    /// they will. What they will not tell of is not watched.
    async fn wait_for_servers(&self, begun: Vec<Begun>) -> Vec<Result<(), ErrorData>> {
        let router = self.client.gateway.router();
        let subscriptions = &router.subscriptions;
        // Once for all resources of a server.
        let servers: HashMap<_, _> = begun.iter().map(|begun| (&begun.of, &begun.session)).collect();
        for (of, session) in servers {
            subscriptions.listen_anew(of, session, router.next_number(), false);
        }
        let waiting = begun.iter().map(|Begun { of, session, uri }| async move {
            let Ok(outcome) = timeout(ACKNOWLEDGE_LIMIT, subscriptions.told_of(of, uri)).await else {
                tracing::debug!(server = %session.name(), uri, "a subscription is not acknowledged");
                return Ok(());
            };
            if outcome.is_err() {
                subscriptions.remove(of, self.client.number, uri);
            }
            outcome
        });
        join_all(waiting).await
    }

    async fn stop_watching(&self, mut uri: String) -> Result<(), ErrorData> {
        let (of, session) = self.place_of(&mut uri).await?;
        let router = self.client.gateway.router();
        match router.subscriptions.remove(&of, self.client.number, &uri) {
            Change::Last if session.era() == Some(Era::Modern) => {
                router.subscriptions.listen_anew(&of, &session, router.next_number(), true);
                Ok(())
            }
            Change::Last => self.tell_of_watching(session, "resources/unsubscribe", &uri).await,
            Change::None | Change::First => Ok(()),
        }
    }

    /// Tells a server of the old era what is watched there.
    async fn tell_of_watching(
        &self,
        session: Arc<Session>,
        method: &str,
        uri: &str,
    ) -> Result<(), ErrorData> {
        let mut params = RawObject::default();
        params.write("uri", &uri);
        let (method, meta) = (method.to_owned(), RawObject::default());
        let outgoing = Outgoing { session, method, params, meta, tool: None };
        self.exchange(outgoing, None).await.map(drop)
    }

    /// Tells a client of the new era of changes until it cancels this request.
    pub(super) async fn listen(&self, params: &RawObject) -> ClientAnswer {
        if self.speaker.era != Era::Modern {
            return Err(Self::no_such_method("subscriptions/listen"));
        }
        let Some(mut filter) = params.read::<ListenFilter>("notifications") else {
            return Err(ErrorData::invalid_params("`notifications` says what to listen to", None));
        };
        if filter.resource_subscriptions.len() > MAX_WATCHED {
            return Err(too_many());
        }
        let mut watched = WatchedByListener { context: self, uris: Vec::new() };
        let mut begun = Vec::new();
        let mut unsure = Vec::new();
        // What cannot be watched is left out of the acknowledgement.
        let mut known = HashSet::new();
        for uri in std::mem::take(&mut filter.resource_subscriptions) {
            // Others have their turn between two of many.
            tokio::task::yield_now().await;
            if !known.insert(uri.clone()) {
                continue;
            }
            let Ok(new) = self.begin_to_watch(&uri).await else { continue };
            if let Some(new) = new {
                begun.push(new);
                unsure.push(uri.clone());
            }
            watched.push(uri);
        }
        let outcomes = self.wait_for_servers(begun).await;
        let refused = unsure.iter().zip(outcomes).filter(|(_, outcome)| outcome.is_err());
        watched.give_up(&refused.map(|(uri, _)| uri).collect());
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

impl WatchedByListener<'_, '_> {
    fn subscriptions(&self) -> &Subscriptions {
        &self.context.client.gateway.router().subscriptions
    }

    fn push(&mut self, uri: String) {
        self.subscriptions().hold(self.context.client.number, &uri);
        self.uris.push(uri);
    }

    /// They are watched without anybody who listens.
    fn keep(&mut self) {
        for uri in self.uris.drain(..) {
            let client = self.context.client;
            client.gateway.router().subscriptions.let_go(client.number, &uri);
        }
    }

    /// These are not watched.
    fn give_up(&mut self, refused: &HashSet<&String>) {
        for uri in self.uris.extract_if(.., |uri| refused.contains(uri)).collect::<Vec<_>>() {
            self.subscriptions().release(self.context.client.number, &uri);
        }
    }
}

impl Drop for WatchedByListener<'_, '_> {
    fn drop(&mut self) {
        for uri in &self.uris {
            self.subscriptions().release(self.context.client.number, uri);
        }
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
