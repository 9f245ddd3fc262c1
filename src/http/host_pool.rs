//! The connection pool of one model server over HTTP/1.1. Each request under way has a connection of its own; idle ones
//! are used again, the last one first, and closed before the server closes them: when that is, its answers say.
//!
//! Other versions of HTTP, where the configuration asks for them, go through the general client.
//!
//! Built on hyper's connections instead of a client for all servers: with a thousand requests at once the queues,
//! copies and address lookups of such a client take as much CPU time as the connections themselves (measured).

use std::{
    error::Error as StdError,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
    header::{HOST, PROXY_AUTHORIZATION},
    rt::{Read, Write},
};
use tokio::{
    task::{AbortHandle, JoinSet},
    time::{Instant, sleep_until, timeout},
};
use url::Url;

mod head;
mod idle_time;
#[cfg(test)]
mod tests;

use super::{
    BoxError, HttpClient, MAX_READ,
    client::{causes, is_timeout},
    route::{Dialer, Route, near},
};
pub(crate) use head::head;
pub(super) use idle_time::IdleTime;

type Connection = http1::SendRequest<Full<Bytes>>;

/// A connection whose last answer was read is ready for a request within this time, or something is wrong with it.
const SOON: Duration = Duration::from_millis(100);

/// How often connections at rest are looked at, at least: one that comes later may have to go earlier.
const LOOK: Duration = Duration::from_secs(5);

/// A server with its pool. Cloning is cheap and shares it.
#[derive(Debug, Clone)]
pub(crate) struct HostPool(Arc<PoolState>);

#[derive(Debug)]
struct PoolState {
    route: Route,
    connect_timeout: Duration,
    idle: IdleTime,
    /// Sends the requests in place of the pool, where HTTP/1.1 is not what is to be spoken.
    general: Option<HttpClient>,
    pool: Mutex<Pool>,
    opened: AtomicU64,
    reused: AtomicU64,
}

#[derive(Debug, Default)]
struct Pool {
    /// The longest at rest first, each with the end of its time.
    idle: Vec<(Instant, Connection)>,
    /// Who closes those that are at rest for too long, while there are any.
    sweeper: Option<AbortHandle>,
    /// What moves the bytes of each connection, and the sweeper.
    tasks: JoinSet<()>,
}

/// Why a request got no answer at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// No connection within the time for it.
    #[error("there is no connection in time")]
    ConnectTimeout,
    /// No connection.
    #[error("there is no connection")]
    NoConnection(#[source] BoxError),
    /// It broke off before an answer, or within it.
    #[error("the connection broke off")]
    Broken(#[source] BoxError),
}

impl PartialEq for HostPool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl HostPool {
    pub(super) fn new(
        route: Route,
        (connect_timeout, idle): (Duration, IdleTime),
        general: Option<HttpClient>,
    ) -> Self {
        let (pool, opened, reused) = Default::default();
        Self(Arc::new(PoolState { route, connect_timeout, idle, general, pool, opened, reused }))
    }

    /// What was counted so far: connections opened, and requests that found one open.
    pub(crate) fn connections(&self) -> (u64, u64) {
        match &self.0.general {
            // All requests that had a connection are counted then.
            Some(client) => {
                let opened = client.connections().opened;
                (opened, self.0.reused.load(Relaxed).saturating_sub(opened))
            }
            None => (self.0.opened.load(Relaxed), self.0.reused.load(Relaxed)),
        }
    }

    /// Sends a request with the server's whole address. It has the headers that it came with, and no others.
    pub(crate) async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<HttpAnswer, RequestError> {
        if let Some(client) = &self.0.general {
            // The client sets it, by the version of HTTP that it comes to speak.
            request.headers_mut().remove(HOST);
            // Boxed: its future is large, and few need it.
            let answer = Box::pin(client.send(request)).await;
            let connected =
                !matches!(answer, Err(RequestError::NoConnection(_) | RequestError::ConnectTimeout));
            self.0.reused.fetch_add(connected.into(), Relaxed);
            return answer;
        }
        match &self.0.route.proxy {
            // A proxy needs the full address.
            Some(proxy) => {
                if let Some(auth) = &proxy.auth {
                    request.headers_mut().insert(PROXY_AUTHORIZATION, auth.clone());
                }
            }
            None => {
                let path = request.uri().path_and_query().cloned();
                *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
            }
        }
        loop {
            let kept = self.kept().await;
            let reused = kept.is_some();
            let mut connection = match kept {
                Some(connection) => connection,
                None => {
                    let connection = self.connect().await?;
                    self.0.opened.fetch_add(1, Relaxed);
                    connection
                }
            };
            match connection.try_send_request(request).await {
                Ok(answer) => {
                    self.0.reused.fetch_add(reused.into(), Relaxed);
                    let (head, body) = answer.into_parts();
                    let idle = self.0.idle.after(&head.headers);
                    let kept = Some(Kept { origin: self.clone(), connection, idle });
                    return Ok(HttpAnswer { status: head.status, headers: head.headers, body, kept });
                }
                Err(mut error) => match error.take_message() {
                    // Closed meanwhile, and nothing of the request is on its way.
                    Some(unsent) if reused => request = unsent,
                    _ => {
                        self.0.reused.fetch_add(reused.into(), Relaxed);
                        return Err(RequestError::Broken(error.into_error().into()));
                    }
                },
            }
        }
    }

    /// Asks for what is at `url`.
    pub(crate) async fn get(&self, url: &Url) -> Result<HttpAnswer, RequestError> {
        let (to, headers) = head(url).map_err(|why| RequestError::NoConnection(why.into()))?;
        let mut request = Request::new(Full::default());
        (*request.uri_mut(), *request.headers_mut()) = (to, headers);
        self.send(request).await
    }

    /// Makes a connection and closes it.
    pub(crate) async fn reach(&self) -> Result<(), RequestError> {
        self.connect().await.map(drop)
    }

    /// One that is at rest.
    async fn kept(&self) -> Option<Connection> {
        loop {
            let (until, mut connection) = self.pool().idle.pop()?;
            // Its last answer may have been read a moment ago, and its own task not have seen that yet.
            if Instant::now() < until && matches!(timeout(SOON, connection.ready()).await, Ok(Ok(()))) {
                return Some(connection);
            }
        }
    }

    /// Takes one back whose answer was read to its end.
    fn keep(&self, connection: Connection, idle: Duration) {
        if connection.is_closed() || idle.is_zero() {
            return;
        }
        let mut pool = self.pool();
        pool.idle.push((Instant::now() + idle, connection));
        if pool.sweeper.as_ref().is_none_or(AbortHandle::is_finished) {
            pool.sweeper = Some(pool.tasks.spawn(sweep(Arc::downgrade(&self.0))));
        }
    }

    /// Boxed because it is large, and every waiting request would reserve room for it.
    fn connect(&self) -> BoxFuture<'_, Result<Connection, RequestError>> {
        Box::pin(async {
            let made = timeout(self.0.connect_timeout, self.dial()).await;
            made.map_err(|_| RequestError::ConnectTimeout)?.map_err(RequestError::NoConnection)
        })
    }

    async fn dial(&self) -> Result<Connection, BoxError> {
        let route = &self.0.route;
        match &route.dial {
            Dialer::Near(at) => self.handshake(near(at).await?).await,
            Dialer::Plain(connector) => self.handshake(route.open(connector).await?).await,
            Dialer::Encrypted(connector) => self.handshake(route.open(connector).await?).await,
            Dialer::Tunnel(connector) => self.handshake(route.open(&**connector).await?).await,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    async fn handshake<I>(&self, io: I) -> Result<Connection, BoxError>
    where
        I: Read + Write + Send + Unpin + 'static,
    {
        let mut builder = http1::Builder::new();
        let (connection, work) = builder.max_buf_size(MAX_READ).handshake(io).await?;
        let mut pool = self.pool();
        while pool.tasks.try_join_next().is_some() {}
        pool.tasks.spawn(async move {
            // Requests that wait for an answer get the error, too.
            if let Err(error) = work.await {
                tracing::debug!(%error, "a connection to a model server ended");
            }
        });
        Ok(connection)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.0.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes connections that are at rest for too long, until there are none.
async fn sweep(origin: Weak<PoolState>) {
    loop {
        let next = {
            let Some(origin) = origin.upgrade().map(HostPool) else { return };
            let (mut pool, now) = (origin.pool(), Instant::now());
            pool.idle.retain(|(until, _)| now < *until);
            let Some(next) = pool.idle.iter().map(|(until, _)| *until).min() else {
                pool.sweeper = None;
                return;
            };
            next.min(now + LOOK)
        };
        sleep_until(next).await;
    }
}

/// An answer whose body is still to be read. Dropped before its end it takes its connection along.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    /// The connection that is kept afterwards, unless a client keeps it by itself.
    kept: Option<Kept>,
}

#[derive(Debug)]
struct Kept {
    origin: HostPool,
    connection: Connection,
    /// For how long it is kept without a request.
    idle: Duration,
}

impl From<Response<Incoming>> for HttpAnswer {
    fn from(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { status: head.status, headers: head.headers, body, kept: None }
    }
}

impl HttpAnswer {
    /// How long the body is, if that is known.
    pub(crate) fn length(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// The next piece of the body; none at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, BoxError> {
        loop {
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        return Ok(Some(data));
                    }
                }
                None => {
                    if let Some(Kept { origin, connection, idle }) = self.kept.take() {
                        origin.keep(connection, idle);
                    }
                    return Ok(None);
                }
            }
        }
    }
}

impl RequestError {
    /// Whether it took too long.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::ConnectTimeout) || causes(self).any(is_timeout)
    }

    /// What is behind it.
    pub(crate) fn cause(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::ConnectTimeout => None,
            Self::NoConnection(error) | Self::Broken(error) => Some(&**error),
        }
    }
}
