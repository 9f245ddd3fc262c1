//! The HTTP server of metrics and of the gateway: connections, with or without TLS; what is answered is its users' matter.
//!
//! Everything from outside is bounded: the number of connections, in all and of each peer (`serve/places.rs`), the head of a
//! request and the time until it is complete. A server on a loopback address, and the gateway on any, refuse requests whose `Host` is another one: a page of the
//! web whose name resolves to this machine (DNS rebinding) reads nothing.

mod places;
pub mod tls;

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HOST, HeaderValue},
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use self::places::{BusyBody, NoPlace, Place, Places};
pub use self::places::{Peer, RequestPlace};
use crate::{cancel::CancellationToken, limit::possible_connections};

/// How long a connection may be open without a byte.
const FIRST_BYTE: Duration = Duration::from_secs(5);
/// The answer to a peer with too many connections.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n\
    Connection: close\r\n\r\ntoo many connections of this address are open (`max_connections` in [gateway])\n";
/// Bytes of the head of a request, and its header lines.
const MAX_HEAD: usize = 32 << 10;
const MAX_HEADERS: usize = 100;
/// How long answers under way may take once the server ends.
const END_GRACE: Duration = Duration::from_secs(1);
/// How the name of a machine ends in its own network; nobody else has such a name.
const LOCAL: &str = ".local";
/// How long no connection is accepted after accepting failed, for want of file descriptors say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The body of an answer: a text, or what arrives piece by piece.
pub type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// A server that listens and answers nothing yet.
pub struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    limits: ServerLimits,
    tls: Option<TlsAcceptor>,
    /// Whether it has these names only on any address.
    is_named: bool,
    /// A name under which it is reached, besides those of this machine.
    public_host: Option<String>,
}

/// Limits of connections: their number and times.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Connections at once, and half of them of one peer, but of this machine; not more than half of the files that there can be.
    pub connections: usize,
    /// How long the head of a request may take, and a connection without a request may stay; also a TLS handshake.
    pub head_timeout: Duration,
    /// How long a client may leave unread what it has been sent (on Linux): then its connection ends.
    pub unread_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 64,
            head_timeout: Duration::from_secs(10),
            unread_timeout: Duration::from_secs(30),
        }
    }
}

/// An answer with this body.
pub fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<AnswerBody> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The refusal of a request that is neither GET nor HEAD.
pub fn unless_get<B>(request: &Request<B>) -> Option<Response<AnswerBody>> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(response)
}

fn refusal(status: StatusCode, why: &'static str) -> Response<AnswerBody> {
    answer(status, "text/plain; charset=utf-8", why)
}

impl HttpServer {
    /// Listens on `address`; port 0 takes any that is free.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let limits = ServerLimits::default();
        Ok(Self { listener, address, limits, tls: None, is_named: false, public_host: None })
    }

    /// With these limits, and encrypted if there is `tls`.
    #[must_use]
    pub fn with(self, limits: ServerLimits, tls: Option<rustls::ServerConfig>) -> Self {
        Self { limits, tls: tls.map(|config| Arc::new(config).into()), ..self }
    }

    /// On any address known by no other names than those of this machine, and by `host`.
    #[must_use]
    pub fn known_as(self, host: Option<String>) -> Self {
        Self { is_named: true, public_host: host, ..self }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `end`; answers under way have a second then. Dropping the future ends all at once.
    pub async fn serve<A>(
        self,
        end: CancellationToken,
        answer: impl Fn(Request<Incoming>) -> A + Send + Sync + 'static,
    ) where
        A: Future<Output = Response<AnswerBody>> + Send + 'static,
    {
        let Self { listener, address, limits, tls, is_named, public_host } = self;
        let is_loopback = address.ip().is_loopback();
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let hosts = KnownHosts { is_loopback, is_named, public: public_host, machine };
        let terms = Arc::new((limits, hosts, tls));
        let answer = Arc::new(answer);
        let places = Places::new(possible_connections(limits.connections));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let (stream, peer) = match end.run_until_cancelled(listener.accept()).await {
                None => break,
                Some(Ok((stream, peer))) => (stream, Peer::of(peer.ip())),
                Some(Err(_)) => {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match end.run_until_cancelled(places.wait(peer)).await {
                None => break,
                Some(Ok(place)) => {
                    connections.spawn(serve_stream(
                        stream,
                        place,
                        terms.clone(),
                        end.clone(),
                        answer.clone(),
                    ));
                }
                Some(Err(NoPlace::OfPeer | NoPlace::All)) => {
                    tracing::debug!(%peer, "too many connections of one address");
                    if terms.2.is_none() {
                        let _ = stream.try_write(TOO_MANY);
                    }
                }
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }
}

async fn serve_stream<A>(
    stream: TcpStream,
    place: Place,
    terms: Arc<(ServerLimits, KnownHosts, Option<TlsAcceptor>)>,
    end: CancellationToken,
    answer: Arc<impl Fn(Request<Incoming>) -> A>,
) where
    A: Future<Output = Response<AnswerBody>> + 'static,
{
    let (limits, hosts, tls) = &*terms;
    let mut first = [0];
    let spoken = timeout(FIRST_BYTE.min(limits.head_timeout), stream.peek(&mut first));
    let spoken = tokio::select! {
        biased;
        () = place.end.cancelled() => return,
        () = end.cancelled() => return,
        spoken = spoken => spoken,
    };
    if !matches!(spoken, Ok(Ok(1))) {
        return;
    }
    // An answer is one write: nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    // The kernel knows who does not read, and who is gone without a word.
    #[cfg(target_os = "linux")]
    let _ = rustix::net::sockopt::set_tcp_user_timeout(
        &stream,
        u32::try_from(limits.unread_timeout.as_millis()).unwrap_or(u32::MAX),
    );
    match tls {
        None => serve_connection(stream, &place, (*limits, hosts), end, answer).await,
        Some(tls) => {
            let shaking =
                Box::pin(place.end.run_until_cancelled(timeout(limits.head_timeout, tls.accept(stream))));
            if let Some(Some(Ok(Ok(stream)))) = end.run_until_cancelled(shaking).await {
                Box::pin(serve_connection(stream, &place, (*limits, hosts), end, answer)).await;
            }
        }
    }
}

async fn serve_connection<A>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    place: &Place,
    (limits, hosts): (ServerLimits, &KnownHosts),
    end: CancellationToken,
    answer: Arc<impl Fn(Request<Incoming>) -> A>,
) where
    A: Future<Output = Response<AnswerBody>> + 'static,
{
    let service = service_fn(|mut request: Request<Incoming>| {
        let (refused, busy) = (refused(&request, hosts), place.begin());
        request.extensions_mut().insert(place.for_request());
        let answer = &answer;
        async move {
            // Another connection has its place: this one ends before anything is done.
            let Some(busy) = busy else { return std::future::pending().await };
            let answer = match refused {
                Some(refused) => refused,
                // Boxed: an idle connection keeps room for what it is not doing.
                None => Box::pin(answer(request)).await,
            };
            Ok::<_, Infallible>(answer.map(|body| BusyBody { body, _busy: busy }))
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head_timeout)
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        biased;
        () = place.end.cancelled() => {}
        // An error here is a client that went away or that does not speak HTTP.
        _ = connection.as_mut() => {}
        () = end.cancelled() => {
            connection.as_mut().graceful_shutdown();
            drop(timeout(END_GRACE, connection).await);
        }
    }
}

/// The names that a request may have in `Host`. A page of the web has a name, and never an address, by which it could reach us.
struct KnownHosts {
    /// Nobody else's address leads here.
    is_loopback: bool,
    /// Other names are refused on other addresses too.
    is_named: bool,
    public: Option<String>,
    machine: String,
}

impl KnownHosts {
    fn has(&self, host: &str) -> bool {
        let is = |name: &str| host.eq_ignore_ascii_case(name);
        let is_machine = || {
            let local = host.len().checked_sub(LOCAL.len()).and_then(|at| host.split_at_checked(at));
            let (name, _) = local.filter(|(_, end)| end.eq_ignore_ascii_case(LOCAL)).unwrap_or((host, ""));
            !name.is_empty() && name.eq_ignore_ascii_case(&self.machine)
        };
        is_loopback_host(host)
            || self.public.as_deref().is_some_and(is)
            || (!self.is_loopback && (ip_of(host).is_some() || is_machine()))
    }
}

/// Why a request is not answered.
fn refused<B>(request: &Request<B>, known: &KnownHosts) -> Option<Response<AnswerBody>> {
    // What came in one piece may be longer than the buffer for it.
    if head_bytes(request) > MAX_HEAD {
        let why = "the head of the request is longer than 32 KiB\n";
        return Some(refusal(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, why));
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Some(refusal(StatusCode::BAD_REQUEST, "a request needs one Host header\n"));
    };
    let host = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok());
    let mut hosts = host.as_ref().map(Authority::host).into_iter().chain(request.uri().host());
    let ours = host.is_some() && hosts.all(|host| known.has(host));
    let why = match known.is_named {
        true => "the Host header is not one of this server: `public_url` in [gateway] gives it a name\n",
        false => "the Host header is not one of this server\n",
    };
    ((known.is_loopback || known.is_named) && !ours).then(|| refusal(StatusCode::MISDIRECTED_REQUEST, why))
}

/// About the bytes of the head of a request.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    request.headers().iter().fold(line, |sum, (name, value)| sum + name.as_str().len() + value.len() + 4)
}

fn ip_of(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Whether a host in an address is this machine's loopback interface.
pub fn is_loopback_host(host: &str) -> bool {
    ip_of(host).map_or_else(|| host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server of one page, and its end.
    async fn server() -> (SocketAddr, CancellationToken, tokio_util::task::AbortOnDropHandle<()>) {
        let server = HttpServer::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let (address, end) = (server.address(), CancellationToken::new());
        let served = server.serve(end.clone(), |request| async move {
            let page = || answer(StatusCode::OK, "text/plain", format!("page {}", request.uri().path()));
            unless_get(&request).unwrap_or_else(page)
        });
        let task = tokio_util::task::AbortOnDropHandle::new(tokio::runtime::Handle::current().spawn(served));
        (address, end, task)
    }

    /// The answer to these bytes, until the server closes the connection.
    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close the connection before it has read all.
        let _ = stream.write_all(request).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[tokio::test]
    async fn only_get_requests_to_this_machine_are_answered() {
        let (address, _end, _task) = server().await;
        let get = |host: &str, path: &str| {
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
        };
        for host in ["127.0.0.1:80", "localhost", "[::1]:9", "LOCALHOST:1"] {
            let text = ask(address, &get(host, "/a")).await;
            assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("page /a"), "{host}: {text}");
        }
        for host in ["example.com", "127.0.0.1.example.com", "10.0.0.1", "", "a b"] {
            let text = ask(address, &get(host, "/a")).await;
            assert!(text.starts_with("HTTP/1.1 4") && !text.contains("page"), "{host}: {text}");
        }
        let other = get("localhost", "http://example.com/a");
        assert!(ask(address, &other).await.starts_with("HTTP/1.1 421"));
        let post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let text = ask(address, post).await;
        assert!(text.starts_with("HTTP/1.1 405") && text.contains("allow: GET, HEAD"), "{text}");
        let twice = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        assert!(ask(address, twice).await.starts_with("HTTP/1.1 400"));
        assert!(ask(address, b"GET / HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 400"));
    }

    #[tokio::test]
    async fn a_head_that_is_too_long_is_refused() {
        let (address, _end, _task) = server().await;
        let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(2 * MAX_HEAD));
        let over = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(MAX_HEAD + 8));
        let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\na: {}\r\n\r\n", "x".repeat(MAX_HEAD));
        for request in [over, header] {
            let text = ask(address, request.as_bytes()).await;
            assert!(text.starts_with("HTTP/1.1 431"), "{text}");
        }
        let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS));
        for request in [long, many] {
            let text = ask(address, request.as_bytes()).await;
            assert!(text.starts_with("HTTP/1.1 4") && !text.contains("page"), "{text}");
        }
    }

    #[tokio::test]
    async fn the_end_closes_idle_connections() {
        let (address, end, task) = server().await;
        let mut idle = TcpStream::connect(address).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut byte = [0; 1];
        idle.read_exact(&mut byte).await.unwrap();
        end.cancel();
        timeout(Duration::from_secs(20), task).await.unwrap().unwrap();
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).await.unwrap();
        assert!(String::from_utf8_lossy(&rest).ends_with("page /"));
        assert!(TcpStream::connect(address).await.is_err());
    }
}
