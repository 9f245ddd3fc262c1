//! The one place that builds HTTP clients. A client is its connection pool, so there are as few as the kinds of
//! traffic need, and each counts the connections that it opens. Limits in time belong to requests, not to clients.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use reqwest::{
    Client, Request, Response, Url,
    header::{HeaderName, HeaderValue},
    redirect,
};

use crate::{
    config::HttpConfig,
    error::Result,
    gate::{Gate, Gates},
};

mod count;
mod guard;
#[cfg(test)]
mod tests;
mod tls;

pub(crate) use guard::NotPublic;

/// All pooled clients. Cloning is cheap and shares the pools; the owner of a run makes one and hands it down.
#[derive(Debug, Clone)]
pub struct HttpClients {
    tools: HttpClient,
    tools_plain: HttpClient,
    tools_loopback: HttpClient,
    search: HttpClient,
    search_loopback: HttpClient,
    pages: HttpClient,
    pages_private: HttpClient,
    models: HttpClient,
    models_loopback: HttpClient,
    looks: HttpClient,
    looks_loopback: HttpClient,
    gates: Gates,
    /// Model clients with limits of their own for making a connection: by the limit, and whether on loopback.
    patient: Arc<Mutex<HashMap<(Duration, bool), HttpClient>>>,
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
    carried: AtomicU64,
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

    /// Sends one request, and counts it when it found a connection.
    pub(crate) async fn execute(&self, request: Request) -> reqwest::Result<Response> {
        let sent = self.client().execute(request).await;
        if sent.as_ref().map_or_else(|error| !error.is_connect() && !error.is_builder(), |_| true) {
            self.0.carried.fetch_add(1, Relaxed);
        }
        sent
    }

    /// Requests of [`HttpClient::execute`] that found a connection.
    pub(crate) fn carried(&self) -> u64 {
        self.0.carried.load(Relaxed)
    }

    /// What stands for its pool among others.
    #[cfg(test)]
    pub(crate) fn pool(&self) -> *const AtomicU64 {
        &raw const self.0.carried
    }

    /// What was counted so far.
    pub fn connections(&self) -> ConnectionCounts {
        ConnectionCounts { opened: self.0.count.opened() }
    }
}

impl HttpClients {
    /// Model servers (vLLM, llama.cpp, uvicorn, Node) close idle connections after 5 s. Letting go before they
    /// do is what keeps a request from being written into a closing connection.
    const MODEL_IDLE: Duration = Duration::from_secs(4);
    const TOOL_IDLE: Duration = Duration::from_secs(90);

    /// Plans the clients. Opens nothing and reads no certificates yet.
    pub fn new(config: &HttpConfig) -> Result<Self> {
        let tools = Traffic {
            idle: Self::TOOL_IDLE,
            max_idle: config.max_idle_per_host,
            http1_only: false,
            redirects: same_origin,
            gzip: false,
            guarded: false,
            reach: Reach::ByProxy,
            connect_timeout: config.connect_timeout,
            tls: tls::Shared::default(),
        };
        // HTTP/1.1 on purpose: one HTTP/2 connection is a hidden cap of its streams. A redirected POST would
        // turn into a GET, so redirects are answers here, and errors.
        let models = Traffic {
            idle: Self::MODEL_IDLE,
            // All of a burst are there for the next one; in four seconds they are gone anyway.
            max_idle: usize::MAX,
            http1_only: true,
            redirects: redirect::Policy::none,
            ..tools.clone()
        };
        let looks = Traffic { max_idle: 0, ..models.clone() };
        // A server without TCP_NODELAY answers on a kept connection 40 ms late (delayed acknowledgement), which
        // costs more than connecting anew; https servers are pooled, their handshake is dearer.
        let unpooled = Traffic { max_idle: 0, ..tools.clone() };
        // An answer is read to its end before it is of use, and so may as well come compressed.
        let search = Traffic { gzip: true, ..tools.clone() };
        // Each redirect is looked at like a first address. No proxy: it would look names up by itself, and what it
        // finds could not be checked.
        let pages = Traffic { redirects: redirect::Policy::none, guarded: true, ..search.clone() };
        let pages_private = Traffic { guarded: false, ..pages.clone() };
        Ok(Self {
            tools_plain: unpooled.clone().pool(),
            tools_loopback: unpooled.local().pool(),
            search_loopback: search.clone().local().pool(),
            pages: pages.direct().pool(),
            pages_private: pages_private.direct().pool(),
            models_loopback: models.clone().local().pool(),
            looks_loopback: looks.clone().local().pool(),
            tools: tools.pool(),
            search: search.pool(),
            models: models.pool(),
            looks: looks.pool(),
            gates: Gates::default(),
            patient: Arc::default(),
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
            Ok(url) if url.scheme() == "http" => &self.tools_plain,
            _ => &self.tools,
        }
    }

    /// For a look at the model server at `url`, each over a connection of its own.
    pub(crate) fn looks_for(&self, url: &str) -> &HttpClient {
        match Url::parse(url) {
            Ok(url) if is_loopback(&url) => &self.looks_loopback,
            _ => &self.looks,
        }
    }

    /// The gate that all who use these clients share for one endpoint. The name holds no secret.
    pub(crate) fn gate(&self, endpoint: &str) -> Gate {
        self.gates.of(endpoint)
    }

    /// For model servers elsewhere.
    pub fn models(&self) -> &HttpClient {
        &self.models
    }

    /// For the model server at `url`: never through a proxy when it is this machine.
    pub fn models_for(&self, url: &str) -> &HttpClient {
        match Url::parse(url) {
            Ok(url) if is_loopback(&url) => &self.models_loopback,
            _ => &self.models,
        }
    }

    /// The same with a limit of its own for making a connection. Those who ask for one limit share a pool.
    pub(crate) fn models_within(&self, url: &str, connect: Option<Duration>) -> HttpClient {
        let usual = self.models_for(url);
        let traffic = &usual.0.traffic;
        let Some(connect) = connect.filter(|connect| *connect != traffic.connect_timeout) else {
            return usual.clone();
        };
        let mut patient = self.patient.lock().unwrap_or_else(PoisonError::into_inner);
        let client = patient.entry((connect, traffic.reach == Reach::Local));
        client.or_insert_with(|| Traffic { connect_timeout: connect, ..traffic.clone() }.pool()).clone()
    }
}

/// How a kind of traffic uses its connections.
#[derive(Debug, Clone)]
struct Traffic {
    idle: Duration,
    max_idle: usize,
    http1_only: bool,
    redirects: fn() -> redirect::Policy,
    gzip: bool,
    /// Connects to public addresses only.
    guarded: bool,
    reach: Reach,
    connect_timeout: Duration,
    tls: tls::Shared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Through the proxy that the system has for an address, if it has one.
    ByProxy,
    Direct,
    /// This machine alone, where no proxy is asked.
    Local,
}

impl Traffic {
    fn direct(self) -> Self {
        Self { reach: Reach::Direct, ..self }
    }

    fn local(self) -> Self {
        Self { reach: Reach::Local, ..self }
    }

    fn pool(self) -> HttpClient {
        let (client, count, carried) = Default::default();
        HttpClient(Arc::new(Pool { traffic: self, client, count, carried }))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn build(&self, count: &count::CountConnections) -> Client {
        let mut tls = self.tls.config();
        let offered: &[&str] = if self.http1_only { &["http/1.1"] } else { &["h2", "http/1.1"] };
        tls.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut builder = Client::builder()
            .user_agent(concat!(env!("CARGO_PKG_NAME"), "/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls)
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .pool_idle_timeout(self.idle)
            .pool_max_idle_per_host(self.max_idle)
            .redirect((self.redirects)())
            .gzip(self.gzip)
            .connector_layer(count.clone());
        if self.http1_only {
            // What would be repeated in there exists in HTTP/2 only; not to repeat it spares a copy of each request.
            builder = builder.http1_only().retry(reqwest::retry::never());
        }
        if self.guarded {
            builder = builder.dns_resolver(Arc::new(guard::PublicOnly));
        }
        if self.reach != Reach::ByProxy {
            builder = builder.no_proxy();
        }
        if self.reach == Reach::Local {
            // This machine does not fall silent. To listen for it takes five system calls for each connection.
            builder = builder.tcp_keepalive(None).tcp_keepalive_interval(None).tcp_keepalive_retries(None);
            #[cfg(target_os = "linux")]
            {
                builder = builder.tcp_user_timeout(None);
            }
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
