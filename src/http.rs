//! HTTP clients for models and remote servers: the one place that builds them.
//!
//! A client is its connection pool, so there are as few as the kinds of traffic need, and each counts the connections that
//! it opens. Tools, search and pages have general clients; model servers, which get by far the most requests, a pool each. A
//! program makes one [`HttpClients`] and hands it to its models and, by [`StartOptions::http`](crate::StartOptions::http), to its
//! manager. Limits in time belong to requests, not to clients.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Request, Uri,
    body::Bytes,
    header::{HeaderName, HeaderValue, LOCATION},
};
use hyper_util::client::proxy::matcher::Matcher;
use url::Url;

use crate::{
    config::{HttpConfig, HttpVersion, LlmConfig},
    error::Result,
};

mod client;
mod guard;
mod host_pool;
mod paced;
mod retry_after;
mod route;
#[cfg(feature = "serve")]
pub(crate) mod serve;
pub(crate) mod sse;
#[cfg(test)]
mod tests;
mod tls;

use client::Client;
pub(crate) use client::request;
pub(crate) use guard::{HostKind, NotPublic, is_link_local, kind_of_host};
use host_pool::IdleTime;
pub(crate) use host_pool::{HostPool, HttpAnswer, RequestError, head};
#[cfg(feature = "serve")]
pub(crate) use paced::connection_counts;
pub(crate) use retry_after::{asked_wait, of_seconds, retry_after};
use route::{AddressScope, Route};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How all of them name themselves.
const USER_AGENT: &str = concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION"));

/// The longest head of an answer, and the most that is read of one connection in one go.
const MAX_READ: usize = 1 << 16;
/// Redirects that one request follows.
pub(crate) const REDIRECTS: usize = 5;

/// All pooled clients. Cloning is cheap and shares the pools; the owner of a run makes one and hands it down.
#[derive(Debug, Clone)]
pub struct HttpClients {
    tools: HttpClient,
    tools_loopback: HttpClient,
    tools_unpooled: HttpClient,
    tools_unpooled_loopback: HttpClient,
    search: HttpClient,
    search_loopback: HttpClient,
    pages: HttpClient,
    pages_private: HttpClient,
    models: Models,
    shared: EndpointValues,
}

/// Values of the users of these clients, by endpoint; one of each type.
#[derive(Clone, Default)]
struct EndpointValues(Arc<Mutex<HashMap<String, Vec<AnyValue>>>>);

type AnyValue = Box<dyn Any + Send + Sync>;

/// Model servers, each with its pool: by their addresses and the limits for making a connection.
#[derive(Debug, Clone)]
struct Models {
    tls: tls::SharedTlsConfig,
    proxies: Proxies,
    connect_timeout: Duration,
    origins: Arc<Mutex<HashMap<(String, ModelPool), HostPool>>>,
}

/// How connections to a model server are made and kept. Those who ask for the same share its pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ModelPool {
    /// Limit of making one, in place of that of [`HttpConfig`].
    pub(crate) connect: Option<Duration>,
    /// How long one is kept without a request.
    pub(crate) idle: Duration,
    pub(crate) version: HttpVersion,
}

impl ModelPool {
    /// As `config` says.
    pub(crate) fn of(config: &LlmConfig) -> Self {
        let &LlmConfig { connect_timeout, pool_idle_timeout, http_version, .. } = config;
        Self { connect: connect_timeout, idle: pool_idle_timeout, version: http_version }
    }
}

impl Default for ModelPool {
    fn default() -> Self {
        Self::of(&LlmConfig::new(None, ""))
    }
}

/// One pool with its count of connections.
#[derive(Debug, Clone)]
pub struct HttpClient(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    traffic: Traffic,
    /// Made when it is needed: a start of servers that are processes needs none of them.
    client: OnceLock<Client>,
    opened: Arc<AtomicU64>,
}

/// What a client counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Connections made. Requests beyond this number found one open.
    pub opened: u64,
}

impl HttpClient {
    /// Sends a request with the server's whole address. It has the headers that it came with, and `Host`. Follows no
    /// redirect.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<HttpAnswer, RequestError> {
        let Pool { traffic, client, opened } = &*self.0;
        client.get_or_init(|| Client::new(traffic, opened)).send(request).await
    }

    /// What was counted so far.
    pub fn connections(&self) -> ConnectionCounts {
        ConnectionCounts { opened: self.0.opened.load(Relaxed) }
    }
}

impl fmt::Debug for EndpointValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl HttpClients {
    /// Plans the clients. Opens nothing and reads no certificates yet.
    pub fn new(config: &HttpConfig) -> Result<Self> {
        let proxies = Proxies::default();
        let tools = Traffic {
            idle: config.pool_idle_timeout,
            version: config.http_version,
            max_idle: config.max_idle_per_host,
            access: Access::Proxied(proxies.clone()),
            connect_timeout: config.connect_timeout,
            tls: tls::SharedTlsConfig::default(),
        };
        // For those that stall on kept connections.
        let unpooled = Traffic { max_idle: 0, ..tools.clone() };
        let search = tools.clone();
        // No proxy: it would resolve names itself, and the addresses could not be checked.
        let pages = Traffic { access: Access::Public, ..search.clone() };
        let pages_private = Traffic { access: Access::Direct, ..pages.clone() };
        Ok(Self {
            tools_unpooled: unpooled.clone().pool(),
            tools_unpooled_loopback: unpooled.near().pool(),
            tools_loopback: tools.clone().near().pool(),
            search_loopback: search.clone().near().pool(),
            pages: pages.pool(),
            pages_private: pages_private.pool(),
            models: Models {
                tls: tools.tls.clone(),
                proxies,
                connect_timeout: config.connect_timeout,
                origins: Arc::default(),
            },
            tools: tools.pool(),
            search: search.pool(),
            shared: EndpointValues::default(),
        })
    }

    /// For the search engine at `url`.
    pub(crate) fn search_for(&self, url: &str) -> &HttpClient {
        match Url::parse(url) {
            Ok(url) if is_loopback(&url) => &self.search_loopback,
            _ => &self.search,
        }
    }

    /// For pages of the public internet: connects to no other address, and follows no redirect.
    pub(crate) fn pages(&self) -> &HttpClient {
        &self.pages
    }

    /// The same for hosts that may have private addresses.
    pub(crate) fn pages_private(&self) -> &HttpClient {
        &self.pages_private
    }

    /// For the remote tool server at `url`.
    pub fn tools_for(&self, url: &str) -> &HttpClient {
        match Url::parse(url) {
            Ok(url) if is_loopback(&url) => &self.tools_loopback,
            _ => &self.tools,
        }
    }

    /// The same with a new connection for each request.
    pub(crate) fn unpooled_tools_for(&self, url: &str) -> &HttpClient {
        match Url::parse(url) {
            Ok(url) if is_loopback(&url) => &self.tools_unpooled_loopback,
            _ => &self.tools_unpooled,
        }
    }

    /// For an address that a server of the public internet has named: connects to no other addresses. If the system has
    /// a proxy for it, that one decides.
    pub(crate) fn named_by_others(&self, url: &Url) -> &HttpClient {
        let proxied = |proxies: &Proxies| {
            let uri = Uri::try_from(url.as_str()).ok();
            uri.is_some_and(|uri| proxies.get_or_init(Matcher::from_system).intercept(&uri).is_some())
        };
        match &self.tools.0.traffic.access {
            Access::Proxied(proxies) if proxied(proxies) => &self.tools,
            _ => &self.pages,
        }
    }

    /// The value that all users of these clients share for one endpoint, a gate say. The name holds no secret.
    pub(crate) fn shared<T: Clone + Default + Send + Sync + 'static>(&self, endpoint: &str) -> T {
        let mut shared = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        let values = shared.entry(endpoint.to_owned()).or_default();
        if let Some(value) = values.iter().find_map(|value| value.downcast_ref::<T>()) {
            return value.clone();
        }
        let value = T::default();
        values.push(Box::new(value.clone()));
        value
    }

    /// The model server at `url`.
    ///
    /// # Errors
    /// Why there is no way to it.
    pub(crate) fn model_server(&self, url: &Url, pool: ModelPool) -> Result<HostPool, String> {
        let Models { tls, proxies, connect_timeout, origins } = &self.models;
        let connect = pool.connect.unwrap_or(*connect_timeout);
        let pool = ModelPool { connect: Some(connect), ..pool };
        let name = url.origin().ascii_serialization();
        let mut origins = origins.lock().unwrap_or_else(PoisonError::into_inner);
        match origins.entry((name.clone(), pool)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => {
                let to = Uri::try_from(&name).map_err(|error| error.to_string())?;
                let access =
                    if is_loopback(url) { Access::Near } else { Access::Proxied(Arc::clone(proxies)) };
                let route = Route::new(&to, access.reach(), tls, (connect, pool.version))?;
                // HTTP/1.1 has a pool of its own, the other versions a general client.
                let client = (pool.version != HttpVersion::Http1).then(|| {
                    let traffic = Traffic {
                        idle: pool.idle,
                        max_idle: usize::MAX,
                        access,
                        connect_timeout: connect,
                        version: pool.version,
                        tls: tls.clone(),
                    };
                    traffic.pool()
                });
                // A time that somebody set is a limit.
                let is_set = pool.idle != ModelPool::default().idle;
                let idle = if is_set { IdleTime::set } else { IdleTime::learned };
                Ok(place.insert(HostPool::new(route, (connect, idle(pool.idle)), client)).clone())
            }
        }
    }
}

/// The proxies that the system has. They are looked up when they are needed.
type Proxies = Arc<OnceLock<Matcher>>;

/// Where a kind of traffic goes, as [`AddressScope`] has it.
#[derive(Debug, Clone)]
enum Access {
    Near,
    Direct,
    Public,
    Proxied(Proxies),
}

impl Access {
    fn reach(&self) -> AddressScope<'_> {
        match self {
            Self::Near => AddressScope::Near,
            Self::Direct => AddressScope::Direct,
            Self::Public => AddressScope::Public,
            Self::Proxied(proxies) => AddressScope::Proxied(proxies.get_or_init(Matcher::from_system)),
        }
    }
}

/// How a kind of traffic uses its connections.
#[derive(Debug, Clone)]
struct Traffic {
    idle: Duration,
    max_idle: usize,
    access: Access,
    connect_timeout: Duration,
    version: HttpVersion,
    tls: tls::SharedTlsConfig,
}

/// What is offered in the handshake of an encrypted connection, by the names of RFC 7301.
fn protocols(version: HttpVersion) -> &'static [&'static str] {
    match version {
        HttpVersion::Auto => &["h2", "http/1.1"],
        HttpVersion::Http1 => &["http/1.1"],
        HttpVersion::Http2 => &["h2"],
    }
}

impl Traffic {
    /// The same to this machine.
    fn near(self) -> Self {
        Self { access: Access::Near, ..self }
    }

    fn reach(&self) -> AddressScope<'_> {
        self.access.reach()
    }

    fn pool(self) -> HttpClient {
        let (client, opened) = Default::default();
        HttpClient(Arc::new(Pool { traffic: self, client, opened }))
    }
}

/// Where the answer to a request to `from` leads, if it is a redirect within the origin.
pub(crate) fn moved(answer: &HttpAnswer, from: &Url) -> Option<Url> {
    if !matches!(answer.status.as_u16(), 301..=303 | 307 | 308) {
        return None;
    }
    let to = from.join(answer.headers.get(LOCATION)?.to_str().ok()?).ok()?;
    (to.origin() == from.origin()).then_some(to)
}

/// Whether this machine itself is meant; `0.0.0.0` is, when it is connected to.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost"
        || host.ends_with(".localhost")
        || guard::literal(url).is_some_and(|address| address.is_loopback() || address.is_unspecified())
}

/// Configured headers, checked. Their values are not shown when a request is printed.
///
/// # Errors
/// What is wrong with one of them, in words without its value.
pub(crate) fn headers<C: FromIterator<(HeaderName, HeaderValue)>>(
    headers: &BTreeMap<String, String>,
) -> Result<C, String> {
    headers
        .iter()
        .map(|(name, value)| {
            let header = HeaderName::try_from(name).map_err(|_| format!("`{name}` is not a header name"))?;
            let mut value = HeaderValue::try_from(value)
                .map_err(|_| format!("the value of header `{name}` is not legal"))?;
            value.set_sensitive(true);
            Ok((header, value))
        })
        .collect()
}
