//! Brings what servers say on their own to the clients that it concerns.

use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Instant,
};

use rmcp::model::ErrorData;
use serde_json::{Value, json, value::RawValue};
use tokio::sync::mpsc;

use super::{
    activity::{Asked, EndedRequests, Outcome, ServerLines},
    bridge::{LogLevel, may_be_asked, unsupported},
    client::{ChangedList, Client, Introduction, lock},
    message,
    outlet::Outlet,
    subscriptions::Subscriptions,
};
use crate::{
    catalog::CatalogEntry,
    error::Error,
    json_rpc::RawObject,
    session::{ClientIdentity, ClientSide, Era, ServerMessages, ServerNotification, ServerRequest},
    tool::ServerName,
};

/// Knows which requests of which clients are under way at which servers.
#[derive(Default)]
pub(crate) struct Router {
    exchanges: Mutex<Exchanges>,
    clients: Mutex<HashMap<u64, Weak<Client>>>,
    pub(super) subscriptions: Subscriptions,
    /// Takes log messages of servers in, where there is a page that shows them.
    lines: OnceLock<Arc<ServerLines>>,
}

#[derive(Default)]
struct Exchanges {
    last: u64,
    open: HashMap<u64, Exchange>,
    /// Those that have ended, where there is a page that shows them.
    ended: Option<EndedRequests>,
}

/// A request of a client that is under way at a server.
#[derive(Clone)]
pub(super) struct Exchange {
    pub(super) client: Weak<Client>,
    /// The number of the client.
    pub(super) number: u64,
    pub(super) server: ServerName,
    pub(super) speaker: Arc<Introduction>,
    pub(super) target: Arc<ReplyTarget>,
    /// Takes the server's requests, for a client that cannot be sent any.
    pub(super) held: Option<mpsc::UnboundedSender<ServerRequest>>,
    /// The least important log messages that are wanted, where a request says so.
    pub(super) log_level: Option<LogLevel>,
    pub(super) asked: Asked,
    pub(super) began: Instant,
}

/// Where messages about a request go. Another one takes its place when the client asks again.
pub(super) struct ReplyTarget(Mutex<(Outlet, Option<Box<RawValue>>)>);

impl ReplyTarget {
    /// `token` is the client's own for reports on progress.
    pub(super) fn new(outlet: Outlet, token: Option<Box<RawValue>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new((outlet, token))))
    }

    pub(super) fn replace(&self, other: &Self) {
        let other = lock(&other.0).clone();
        *lock(&self.0) = other;
    }

    fn outlet(&self) -> Outlet {
        lock(&self.0).0.clone()
    }

    /// Passes a report on, by the client's own token.
    pub(super) fn report(&self, params: &RawValue) {
        let (outlet, token) = lock(&self.0).clone();
        let (Some(token), Ok(mut params)) = (token, RawObject::parse(Some(params))) else { return };
        params.set("progressToken", token);
        outlet.send(message::notification("notifications/progress", Some(&params.into_raw())));
    }
}

/// A request that is known to the router until this is dropped.
pub(super) struct ExchangeEntry {
    router: Arc<Router>,
    pub(super) number: u64,
    outcome: Outcome,
}

impl ExchangeEntry {
    /// It has ended in this way. Dropped without that, it was cancelled.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for ExchangeEntry {
    fn drop(&mut self) {
        let outcome = std::mem::replace(&mut self.outcome, Outcome::Cancelled);
        let mut exchanges = self.router.exchanges();
        let Some(exchange) = exchanges.open.remove(&self.number) else { return };
        let Exchange { number, server, asked, began, .. } = &exchange;
        let driven_out = exchanges.ended.as_mut().and_then(|ended| {
            let caller = (*number, exchange.speaker.name.clone());
            ended.add(caller, (server.clone(), asked.clone()), *began, outcome)
        });
        drop(exchanges);
        drop((driven_out, exchange));
    }
}

impl Router {
    /// Who the manager is towards the servers that all clients share: one that can do all that a client may be able to do.
    pub(crate) fn shared_side(self: &Arc<Self>) -> ClientSide {
        let capabilities = json!({
            "sampling": {"tools": {}, "context": {}},
            "elicitation": {"form": {}, "url": {}},
            "roots": {"listChanged": true},
        });
        let identity = ClientIdentity { capabilities, ..ClientIdentity::default() };
        ClientSide { identity: Arc::new(identity), messages: Some(self.clone()) }
    }

    /// As [`Router::shared_side`], for a manager with other callers besides the clients: it declares nothing.
    pub(crate) fn silent_side(self: &Arc<Self>) -> ClientSide {
        ClientSide { identity: Arc::default(), messages: Some(self.clone()) }
    }

    /// A number that no other request has.
    pub(super) fn next_number(&self) -> u64 {
        let mut exchanges = self.exchanges();
        exchanges.last += 1;
        exchanges.last
    }

    pub(super) fn open(self: &Arc<Self>, exchange: Exchange) -> ExchangeEntry {
        let mut exchanges = self.exchanges();
        exchanges.last += 1;
        let number = exchanges.last;
        exchanges.open.insert(number, exchange);
        ExchangeEntry { router: self.clone(), number, outcome: Outcome::Cancelled }
    }

    pub(super) fn add(&self, client: &Arc<Client>) {
        lock(&self.clients).insert(client.number, Arc::downgrade(client));
    }

    pub(super) fn remove(&self, client: &Client) {
        lock(&self.clients).remove(&client.number);
    }

    /// All clients that there are.
    pub(super) fn clients(&self) -> Vec<Arc<Client>> {
        lock(&self.clients).values().filter_map(Weak::upgrade).collect()
    }

    /// The request that a message of `server` belongs to: the one that the transport names, or the newest one of the only
    /// client that has some under way. `own` is the client whose own server it is.
    fn exchange(
        &self,
        server: &ServerName,
        named: Option<u64>,
        own: Option<u64>,
    ) -> Result<Option<Exchange>, SeveralClients> {
        let exchanges = self.exchanges();
        if let Some(exchange) = named.and_then(|number| exchanges.open.get(&number)) {
            return Ok(Some(exchange.clone()));
        }
        let here = |exchange: &(&u64, &Exchange)| {
            exchange.1.server == *server && own.is_none_or(|own| exchange.1.number == own)
        };
        let mut found: Option<(&u64, &Exchange)> = None;
        for one in exchanges.open.iter().filter(here) {
            match found {
                Some(known) if known.1.number != one.1.number => return Err(SeveralClients),
                Some(known) if known.0 > one.0 => {}
                _ => found = Some(one),
            }
        }
        Ok(found.map(|(_, exchange)| exchange.clone()))
    }

    /// The only client that sees `server`, if there is no other.
    pub(super) fn only_client_of(&self, server: &ServerName) -> Option<Arc<Client>> {
        let mut seeing = self.clients().into_iter().filter(|client| client.endpoint.has(server));
        match (seeing.next(), seeing.next()) {
            (Some(client), None) => Some(client),
            _ => None,
        }
    }

    /// Passes on a notification. `own` is the client whose own server it comes from.
    fn pass(&self, told: &ServerNotification<'_>, own: Option<&Arc<Client>>) {
        let ServerNotification { server, method, params, exchange } = told;
        let params_of = || RawObject::parse(*params).unwrap_or_default();
        let concerned = || match own {
            Some(client) => vec![client.clone()],
            None => self.clients().into_iter().filter(|client| client.endpoint.has(server)).collect(),
        };
        match (*method, ChangedList::of(method)) {
            (_, Some(list)) => {
                // Whether a client that does not see all tools sees a change of a shared server is known once they have been
                // listed again.
                let tells = |client: &&Arc<Client>| {
                    own.is_some() || list != ChangedList::Tools || !client.shown().tools.hides()
                };
                concerned().iter().filter(tells).for_each(|client| client.tell_list_changed(list));
            }
            ("notifications/resources/updated", _) => {
                let params = without_subscription(params_of());
                let Some(uri) = params.read::<String>("uri") else { return };
                for client in concerned() {
                    if let Some(name) = self.subscriptions.name_at(client.number, server, &uri) {
                        client.tell_resource_updated(&name, &named(&params, &uri, &name));
                    }
                }
            }
            ("notifications/subscriptions/acknowledged", _) => {
                if let Some(number) = exchange {
                    self.subscriptions.acknowledged(*number, &params_of());
                }
            }
            ("notifications/cancelled", _) => {
                let params = params_of();
                let Some(id) = params.get("requestId") else { return };
                for client in concerned() {
                    client.asked.cancelled(server, id, &params, &client.general);
                }
            }
            _ => self.pass_to_one(told, own, *exchange),
        }
    }

    /// Passes on what belongs to a request, or to the only client: nothing crosses from one client to another.
    fn pass_to_one(&self, told: &ServerNotification<'_>, own: Option<&Arc<Client>>, exchange: Option<u64>) {
        let ServerNotification { server, method, params, .. } = told;
        let text = || message::notification(method, *params);
        let level =
            || params.and_then(|params| RawObject::parse(Some(params)).ok()?.read::<LogLevel>("level"));
        let is_log = *method == "notifications/message";
        if let Some(lines) = self.lines.get().filter(|_| is_log) {
            lines.said(server, *params);
        }
        let wanted =
            |least: Option<LogLevel>| !is_log || least.zip(level()).is_none_or(|(least, it)| it >= least);
        match self.exchange(server, exchange, own.map(|own| own.number)) {
            Ok(Some(exchange)) => {
                let Some(client) = exchange.client.upgrade() else { return };
                let (says, least) = match exchange.speaker.era {
                    Era::Modern => (exchange.log_level.is_some() || !is_log, exchange.log_level),
                    Era::Legacy => (true, *lock(&client.log_level)),
                };
                if says && wanted(least) {
                    exchange.target.outlet().send(text());
                }
            }
            Ok(None) => {
                let only = own.cloned().or_else(|| self.only_client_of(server));
                if let Some(client) = only
                    && client.introduction().is_some()
                    && wanted(*lock(&client.log_level))
                {
                    client.general.send(text());
                }
            }
            Err(SeveralClients) => {
                tracing::debug!(%server, method, "several clients are at work: it is not known whom this is for");
            }
        }
    }

    /// Has a request of a server answered by the client that it is for.
    fn ask(&self, request: ServerRequest, own: Option<&Arc<Client>>) {
        let refuse = |request: ServerRequest, why: String| {
            request.reply.send(Err(ErrorData::internal_error(why, None)));
        };
        let found = self.exchange(&request.server, request.exchange, own.map(|own| own.number));
        let (client, capabilities, outlet, held) = match found {
            Ok(Some(exchange)) => {
                let Some(client) = exchange.client.upgrade() else {
                    return refuse(request, "the client is gone".to_owned());
                };
                let capabilities = exchange.speaker.capabilities.clone();
                (client, capabilities, exchange.target.outlet(), exchange.held)
            }
            Ok(None) => match own.cloned().or_else(|| self.only_client_of(&request.server)) {
                Some(client) if client.introduction().is_some() => {
                    let known = client.introduction().map_or(Value::Null, |known| known.capabilities.clone());
                    let outlet = client.general.clone();
                    (client, known, outlet, None)
                }
                _ => return refuse(request, "no client of the gateway has a request under way".to_owned()),
            },
            Err(SeveralClients) => {
                let why = format!(
                    "several clients share this server, and it cannot be told which of them this is for: give each \
                     its own with `scope = \"client\"` in `servers.{}`",
                    request.server
                );
                return refuse(request, why);
            }
        };
        if !may_be_asked(&capabilities, &request.method) {
            let why = unsupported(&request.method);
            return request.reply.send(Err(why));
        }
        match held {
            Some(held) => drop(held.send(request)),
            None => client.asked.ask(request, &outlet),
        }
    }

    /// Keeps from here on what a page shows.
    #[cfg(feature = "serve")]
    pub(super) fn keep_activity(&self, lines: Arc<ServerLines>) {
        // Set by the only gateway that this router has.
        let _ = self.lines.set(lines);
        self.exchanges().ended = Some(EndedRequests::default());
    }

    /// The requests under way with their numbers, the oldest first.
    #[cfg(feature = "serve")]
    pub(super) fn open_exchanges(&self) -> Vec<(u64, Exchange)> {
        let mut open: Vec<(u64, Exchange)> =
            self.exchanges().open.iter().map(|(number, exchange)| (*number, exchange.clone())).collect();
        open.sort_unstable_by_key(|(number, _)| *number);
        open
    }

    /// The requests that have ended after this number, in order, and the last number.
    #[cfg(feature = "serve")]
    pub(super) fn ended_after(&self, number: u64) -> (Vec<super::activity::EndedRequest>, u64) {
        self.exchanges().ended.as_ref().map(|ended| ended.after(number)).unwrap_or_default()
    }

    /// A tool call of a client failed before it got to a server.
    pub(super) fn call_failed(
        &self,
        client: &Client,
        speaker: &Introduction,
        entry: &Arc<CatalogEntry>,
        error: &Error,
    ) {
        let asked = Asked::Tool(entry.clone());
        let driven_out = self.exchanges().ended.as_mut().and_then(|ended| {
            let caller = (client.number, speaker.name.clone());
            ended.add(caller, (entry.server.clone(), asked), Instant::now(), Outcome::of_error(error))
        });
        drop(driven_out);
    }

    fn exchanges(&self) -> MutexGuard<'_, Exchanges> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It is not known whom a message is for.
struct SeveralClients;

/// What is said of a resource, by the name that the client knows.
fn named<'a>(params: &'a RawObject, uri: &str, name: &str) -> Cow<'a, RawObject> {
    if uri == name {
        return Cow::Borrowed(params);
    }
    let mut params = params.clone();
    params.write("uri", &name);
    Cow::Owned(params)
}

/// A notification of an upstream subscription, without the mark of that.
fn without_subscription(mut params: RawObject) -> RawObject {
    if let Ok(mut meta) = RawObject::parse(params.get("_meta"))
        && meta.take(super::hello::meta_key::SUBSCRIPTION).is_some()
    {
        match meta.is_empty() {
            true => drop(params.take("_meta")),
            false => params.set("_meta", meta.into_raw()),
        }
    }
    params
}

impl ServerMessages for Router {
    fn notification(&self, message: ServerNotification<'_>) {
        self.pass(&message, None);
    }

    fn request(&self, request: ServerRequest) {
        self.ask(request, None);
    }
}

/// Gets what the own servers of one client say.
pub(super) struct OwnMessages(Weak<Client>);

impl OwnMessages {
    pub(super) fn new(client: &Arc<Client>) -> Self {
        Self(Arc::downgrade(client))
    }
}

impl ServerMessages for OwnMessages {
    fn notification(&self, message: ServerNotification<'_>) {
        if let Some(client) = self.0.upgrade() {
            client.gateway.router().pass(&message, Some(&client));
        }
    }

    fn request(&self, request: ServerRequest) {
        if let Some(client) = self.0.upgrade() {
            client.gateway.router().ask(request, Some(&client));
        }
    }
}
