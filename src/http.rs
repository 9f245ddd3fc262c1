//! The one place that builds HTTP clients. A client is its connection pool, so there are as few as the kinds of
//! traffic need, and each counts the connections that it opens. Limits in time belong to requests, not to clients.
//! Tools, search and pages have general clients; model servers, which get by far the most requests, a pool each.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    error::Error as _,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{
    Client, StatusCode, Url,
    header::{HeaderName, HeaderValue},
    redirect,
};

use crate::{
    config::{HttpConfig, HttpVersion, LlmConfig},
    error::Result,
    gate::{Gate, Gates},
};

mod count;
mod guard;
mod origin;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use guard::NotPublic;
use origin::Road;
pub(crate) use origin::{Answer, Origin, Unanswered, head};

/// How all of them name themselves.
const USER_AGENT: &str = concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION"));

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
    gates: Gates,
}

/// Model servers, each with its pool: by their addresses and the limits for making a connection.
#[derive(Debug, Clone)]
struct Models {
    tls: tls::Shared,
    proxies: Arc<OnceLock<Matcher>>,
    connect_timeout: Duration,
    origins: Arc<Mutex<HashMap<(String, ModelPool), Origin>>>,
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
    count: count::CountConnections,
}

/// What a client counted so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionCounts {
    /// Connections made. Requests beyond this number found one open.
    pub opened: u64,
}

impl HttpClient {
    /// The client itself.
    pub fn client(&self) -> &Client {
        self.0.client.get_or_init(|| self.0.traffic.build(&self.0.count))
    }

    /// What was counted so far.
    pub fn connections(&self) -> ConnectionCounts {
        ConnectionCounts { opened: self.0.count.opened() }
    }
}

impl HttpClients {
    /// Plans the clients. Opens nothing and reads no certificates yet.
    pub fn new(config: &HttpConfig) -> Result<Self> {
        let tools = Traffic {
            idle: config.pool_idle_timeout,
            version: config.http_version,
            max_idle: config.max_idle_per_host,
            redirects: told,
            gzip: false,
            guarded: false,
            proxied: true,
            connect_timeout: config.connect_timeout,
            tls: tls::Shared::default(),
        };
        // For those that stall on kept connections.
        let unpooled = Traffic { max_idle: 0, ..tools.clone() };
        // An answer is read to its end before it is of use, and so may as well come compressed.
        let search = Traffic { gzip: true, redirects: same_origin, ..tools.clone() };
        // Each redirect is looked at like a first address. No proxy: it would look names up by itself, and what it
        // finds could not be checked.
        let pages = Traffic { redirects: redirect::Policy::none, guarded: true, ..search.clone() };
        let pages_private = Traffic { guarded: false, ..pages.clone() };
        Ok(Self {
            tools_unpooled: unpooled.clone().pool(),
            tools_unpooled_loopback: unpooled.direct().pool(),
            tools_loopback: tools.clone().direct().pool(),
            search_loopback: search.clone().direct().pool(),
            pages: pages.direct().pool(),
            pages_private: pages_private.direct().pool(),
            models: Models {
                tls: tools.tls.clone(),
                proxies: Arc::default(),
                connect_timeout: config.connect_timeout,
                origins: Arc::default(),
            },
            tools: tools.pool(),
            search: search.pool(),
            gates: Gates::default(),
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

    /// The gate that all who use these clients share for one endpoint. The name holds no secret.
    pub(crate) fn gate(&self, endpoint: &str) -> Gate {
        self.gates.of(endpoint)
    }

    /// The model server at `url`.
    ///
    /// # Errors
    /// Why there is no way to it.
    pub(crate) fn model_server(&self, url: &Url, pool: ModelPool) -> Result<Origin, String> {
        let Models { tls, proxies, connect_timeout, origins } = &self.models;
        let connect = pool.connect.unwrap_or(*connect_timeout);
        let pool = ModelPool { connect: Some(connect), ..pool };
        let name = url.origin().ascii_serialization();
        let mut origins = origins.lock().unwrap_or_else(PoisonError::into_inner);
        match origins.entry((name.clone(), pool)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => {
                let to = Uri::try_from(&name).map_err(|error| error.to_string())?;
                let proxies = (!is_loopback(url)).then(|| proxies.get_or_init(Matcher::from_system));
                // HTTP/1.1 has a pool of its own, the other versions a general client.
                let client = (pool.version != HttpVersion::Http1).then(|| {
                    let traffic = Traffic {
                        idle: pool.idle,
                        max_idle: usize::MAX,
                        redirects: redirect::Policy::none,
                        gzip: false,
                        guarded: false,
                        proxied: proxies.is_some(),
                        connect_timeout: connect,
                        version: pool.version,
                        tls: tls.clone(),
                    };
                    traffic.pool()
                });
                let road = Road::new(&to, proxies, tls, (connect, pool.version))?;
                Ok(place.insert(Origin::new(road, (connect, pool.idle), client)).clone())
            }
        }
    }
}

/// How a kind of traffic uses its connections.
#[derive(Debug, Clone)]
struct Traffic {
    idle: Duration,
    max_idle: usize,
    redirects: fn() -> redirect::Policy,
    gzip: bool,
    /// Connects to public addresses only.
    guarded: bool,
    /// Through the proxy that the system has for an address, if it has one.
    proxied: bool,
    connect_timeout: Duration,
    version: HttpVersion,
    tls: tls::Shared,
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
    fn direct(self) -> Self {
        Self { proxied: false, ..self }
    }

    fn pool(self) -> HttpClient {
        let (client, count) = Default::default();
        HttpClient(Arc::new(Pool { traffic: self, client, count }))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn build(&self, count: &count::CountConnections) -> Client {
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .tls_backend_preconfigured(self.tls.offering(protocols(self.version)))
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .pool_idle_timeout(self.idle)
            .pool_max_idle_per_host(self.max_idle)
            .redirect((self.redirects)())
            .gzip(self.gzip)
            .connector_layer(count.clone());
        builder = match self.version {
            HttpVersion::Auto => builder,
            HttpVersion::Http1 => builder.http1_only(),
            HttpVersion::Http2 => builder.http2_prior_knowledge(),
        };
        if self.guarded {
            builder = builder.dns_resolver(Arc::new(guard::PublicOnly));
        }
        if !self.proxied {
            builder = builder.no_proxy();
        }
        builder.build().expect("legal settings, whatever the configuration says")
    }
}

/// Follows a few redirects within one origin: headers with keys must not travel to another one.
fn same_origin() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let from = attempt.previous().last().map(Url::origin);
        if from == Some(attempt.url().origin()) && attempt.previous().len() <= 5 {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// Follows no redirect, and gives one within the origin as the error [`Moved`]: a tool call must not be sent twice.
fn told() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let from = attempt.previous().last().map(Url::origin);
        if from == Some(attempt.url().origin()) && attempt.status() != StatusCode::SEE_OTHER {
            let to = attempt.url().clone();
            attempt.error(Moved(to))
        } else {
            attempt.stop()
        }
    })
}

/// A redirect of a tool server to another path of its own. What it displays has no address in it.
#[derive(Debug, thiserror::Error)]
#[error("it was answered with a redirect")]
pub(crate) struct Moved(Url);

impl Moved {
    /// Where to, if that is what `error` is about.
    pub(crate) fn cause_of(error: &reqwest::Error) -> Option<Url> {
        let mut cause = error.source();
        while let Some(error) = cause {
            if let Some(Self(to)) = error.downcast_ref::<Self>() {
                return Some(to.clone());
            }
            cause = error.source();
        }
        None
    }
}

/// Whether this machine itself is meant; `0.0.0.0` is, when it is connected to.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    host == "localhost"
        || host.ends_with(".localhost")
        || guard::literal(url).is_some_and(|address| address.is_loopback() || address.is_unspecified())
}

/// Configured headers, checked. Their values are not shown by whoever prints requests.
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
