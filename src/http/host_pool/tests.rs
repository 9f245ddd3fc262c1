//! Tests pools, routes and counts with real sockets.

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{Router, routing::get};
use hyper_util::client::proxy::matcher::Matcher;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Barrier,
    time::sleep,
};

use super::*;
use crate::{
    config::{HttpConfig, HttpVersion},
    http::{HttpClients, ModelPool, route::AddressScope, tests::serve, tls},
};

/// How long a test waits for something that must happen.
const LONG: Duration = Duration::from_secs(60);

fn clients() -> HttpClients {
    HttpClients::new(&HttpConfig::default()).unwrap()
}

fn url(at: &str) -> Url {
    Url::parse(at).unwrap()
}

/// The body of what is at `at`, read to its end.
async fn fetch(origin: &HostPool, at: &str) -> String {
    let mut answer = origin.get(&url(at)).await.unwrap();
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    String::from_utf8(body).unwrap()
}

#[tokio::test]
async fn requests_one_after_the_other_share_a_connection() {
    let (at, _server) = serve(Router::new().route("/", get(|| async { "ok" }))).await;
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    for _ in 0..50 {
        assert_eq!(fetch(&origin, &at).await, "ok");
    }
    assert_eq!(origin.connections(), (1, 49));
}

#[tokio::test]
async fn fifty_concurrent_requests_are_in_flight_together() {
    let barrier = Arc::new(Barrier::new(50));
    let peak = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let (gate, highest) = (Arc::clone(&barrier), Arc::clone(&peak));
    // No request is answered before all fifty are there: a hidden cap would hang here.
    let handler = move || async move {
        highest.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        gate.wait().await;
        now.fetch_sub(1, SeqCst);
        "ok"
    };
    let (at, _server) = serve(Router::new().route("/", get(handler))).await;
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    for _ in 0..2 {
        let mut burst = JoinSet::new();
        for _ in 0..50 {
            let (origin, at) = (origin.clone(), at.clone());
            burst.spawn(async move { fetch(&origin, &at).await });
        }
        burst.join_all().await;
    }
    assert_eq!(peak.load(SeqCst), 50);
    assert_eq!(origin.connections(), (50, 50), "the second burst opens none");
}

#[test]
fn one_server_with_one_limit_is_one_pool() {
    let clients = clients();
    let pool = |at: &str, seconds| {
        let connect = Option::map(seconds, Duration::from_secs);
        clients.model_server(&url(at), ModelPool { connect, ..ModelPool::default() }).unwrap()
    };
    let usual = pool("http://localhost/v1", None);
    assert_eq!(
        usual,
        pool("http://localhost:80/other", Some(HttpConfig::default().connect_timeout.as_secs()))
    );
    let patient = pool("http://localhost/v1", Some(3));
    assert_eq!(patient, pool("http://localhost/v1", Some(3)));
    assert_ne!(usual, patient);
    assert_ne!(usual, pool("https://localhost/v1", None));
}

/// What was written up to the end of a request's head.
async fn request(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut read).await.unwrap(), 0, "the client went away");
    }
    String::from_utf8(read).unwrap()
}

const EMPTY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

#[tokio::test]
async fn idle_and_closed_connections_are_not_used() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/", listener.local_addr().unwrap());
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    let answered = async || {
        let answer = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            request(&mut socket).await;
            socket.write_all(EMPTY).await.unwrap();
            socket
        };
        tokio::join!(fetch(&origin, &at), answer).1
    };
    drop(answered().await);
    let noticed = async {
        while !origin.pool().idle[0].1.is_closed() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LONG, noticed).await.unwrap();
    let mut second = answered().await;
    assert_eq!(origin.connections(), (2, 0));
    // Closed by the client, who is not asked for anything meanwhile.
    let ended = timeout(LONG, second.read(&mut [0])).await.unwrap();
    assert_eq!(ended.unwrap(), 0);
    assert!(origin.pool().idle.is_empty());
}

#[tokio::test]
async fn connections_are_kept_as_long_as_the_server_says() {
    const TOLD: &[u8] = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=75, max=9\r\ncontent-length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/", listener.local_addr().unwrap());
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    let answer = async |socket: &mut TcpStream| {
        request(socket).await;
        socket.write_all(TOLD).await.unwrap();
    };
    let later = async |seconds| {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
    };
    let first = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        answer(&mut socket).await;
        socket
    };
    let (_, mut socket) = tokio::join!(fetch(&origin, &at), first);
    for _ in 0..3 {
        later(60).await;
        tokio::join!(fetch(&origin, &at), answer(&mut socket));
    }
    assert_eq!(origin.connections(), (1, 3));
    later(74).await;
    let ended = timeout(LONG, socket.read(&mut [0])).await.unwrap();
    assert_eq!(ended.unwrap(), 0, "the client closes it before the server does");
}

#[tokio::test]
async fn an_unread_answer_closes_its_connection() {
    let (at, _server) = serve(Router::new().route("/", get(|| async { "ok" }))).await;
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    drop(origin.get(&url(&at)).await.unwrap());
    assert_eq!(fetch(&origin, &at).await, "ok");
    assert_eq!(origin.connections(), (2, 0));
}

#[tokio::test]
async fn a_dropped_request_is_cancelled_at_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/", listener.local_addr().unwrap());
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    let asked = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket
    };
    let mut socket = tokio::select! {
        _ = fetch(&origin, &at) => panic!("nobody answered"),
        socket = asked => socket,
    };
    assert_eq!(timeout(LONG, socket.read(&mut [0])).await.unwrap().unwrap(), 0);
    assert_eq!(origin.connections(), (1, 0));
}

#[tokio::test]
async fn a_redirect_is_returned_as_an_answer() {
    let away = || async { axum::response::Redirect::temporary("/") };
    let (at, _server) = serve(Router::new().route("/away", get(away))).await;
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    let answer = origin.get(&url(&format!("{at}away"))).await.unwrap();
    assert_eq!(answer.status, 307, "a POST would become a GET");
}

static TLS: LazyLock<tls::SharedTlsConfig> = LazyLock::new(tls::SharedTlsConfig::default);

/// The way to `to` where one proxy is set for all.
fn route(to: &str, proxy: &str) -> Result<HostPool, String> {
    let matcher = Matcher::builder().all(proxy).build();
    let route =
        Route::new(&to.parse().unwrap(), AddressScope::Proxied(&matcher), &TLS, (LONG, HttpVersion::Http1))?;
    Ok(HostPool::new(route, (LONG, IdleTime::set(LONG)), None))
}

#[tokio::test]
async fn a_proxy_gets_the_full_url_and_credentials() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://me:secret@{}", listener.local_addr().unwrap());
    let answer = async || {
        let (mut socket, _) = listener.accept().await.unwrap();
        let asked = request(&mut socket).await;
        socket.write_all(EMPTY).await.unwrap();
        asked
    };
    let (plain, encrypted) = ("http://models.test/v1/models?x=1", "https://models.test/v1");
    let origin = route("http://models.test", &proxy).unwrap();
    let (_, asked) = tokio::join!(fetch(&origin, plain), answer());
    assert!(asked.starts_with(&format!("GET {plain} HTTP/1.1\r\nhost: models.test\r\n")), "{asked}");
    assert!(asked.contains("\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");

    // The proxy accepts, but no TLS server follows.
    let origin = route("https://models.test", &proxy).unwrap();
    let no_one = url(encrypted);
    let (refused, asked) = tokio::join!(origin.get(&no_one), answer());
    assert!(matches!(refused, Err(RequestError::NoConnection(_))), "{refused:?}");
    assert!(asked.starts_with("CONNECT models.test:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");
    assert!(asked.contains("\r\nuser-agent: toolcrib/"), "{asked}");

    let refused = route("http://models.test", "socks5://127.0.0.1:1").unwrap_err();
    assert_eq!(refused, "the proxy for it is a socks5:// one, where http:// and https:// are known");
}

/// What the kernel waits for on the client's side of a connection to `listener`: the timer in its table of sockets.
#[cfg(target_os = "linux")]
async fn timer(origin: &HostPool, listener: &TcpListener) -> String {
    let at = listener.local_addr().unwrap();
    let url = format!("http://{at}/");
    let answer = async {
        let (mut socket, peer) = listener.accept().await.unwrap();
        request(&mut socket).await;
        socket.write_all(EMPTY).await.unwrap();
        (socket, peer)
    };
    let (_, (_socket, peer)) = tokio::join!(fetch(origin, &url), answer);
    let ends = [peer.port(), at.port()].map(|port| format!(":{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let mut rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row[1].ends_with(&ends[0]) && row[2].ends_with(&ends[1])).unwrap();
    row[5].split(':').next().unwrap().to_owned()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn only_connections_to_other_machines_are_kept_alive() {
    // As in https://docs.kernel.org/networking/proc_net_tcp.html.
    let (none, keepalive) = ("00", "02");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to: Uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let without_proxy = Matcher::builder().build();
    let way = |reach: AddressScope<'_>| {
        HostPool::new(
            Route::new(&to, reach, &TLS, (LONG, HttpVersion::Http1)).unwrap(),
            (LONG, IdleTime::set(LONG)),
            None,
        )
    };
    assert_eq!(timer(&way(AddressScope::Near), &listener).await, none);
    assert_eq!(timer(&way(AddressScope::Proxied(&without_proxy)), &listener).await, keepalive);
}

#[tokio::test]
async fn idle_connections_are_kept_as_long_as_configured() {
    let (at, _server) = serve(Router::new().route("/", get(|| async { "ok" }))).await;
    let pool = |idle| ModelPool { idle, ..ModelPool::default() };
    let clients = clients();
    let patient = clients.model_server(&url(&at), pool(LONG)).unwrap();
    let usual = clients.model_server(&url(&at), ModelPool::default()).unwrap();
    assert_eq!((fetch(&patient, &at).await, fetch(&usual, &at).await), ("ok".to_owned(), "ok".to_owned()));
    let closed = async {
        while !usual.pool().idle.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, closed).await.unwrap();
    // Longer than the usual ones are kept.
    fetch(&patient, &at).await;
    assert_eq!(patient.connections(), (1, 1));
}

/// A frame of HTTP/2: its kind, its flags and its stream.
async fn frame(socket: &mut TcpStream) -> (u8, u8, u32) {
    let mut head = [0; 9];
    socket.read_exact(&mut head).await.unwrap();
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    socket.read_exact(&mut vec![0; length as usize]).await.unwrap();
    (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]))
}

#[tokio::test]
async fn http_2_sends_all_requests_over_one_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/", listener.local_addr().unwrap());
    let pool = ModelPool { version: HttpVersion::Http2, ..ModelPool::default() };
    let origin = clients().model_server(&url(&at), pool).unwrap();
    let serving = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut preface = [0; 24];
        socket.read_exact(&mut preface).await.unwrap();
        assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        socket.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await.unwrap();
        // No request is answered before both are there.
        let mut asked = Vec::new();
        while asked.len() < 2 {
            match frame(&mut socket).await {
                (1, _, stream) => asked.push(stream),
                (4, 0, _) => socket.write_all(&[0, 0, 0, 4, 1, 0, 0, 0, 0]).await.unwrap(),
                _ => {}
            }
        }
        for stream in asked {
            // Headers that end the stream: the one that stands for the status 200.
            let [a, b, c, d] = stream.to_be_bytes();
            socket.write_all(&[0, 0, 1, 1, 5, a, b, c, d, 0x88]).await.unwrap();
        }
        socket
    };
    let asking = async { tokio::join!(fetch(&origin, &at), fetch(&origin, &at)) };
    let (answers, _socket) = timeout(LONG, async { tokio::join!(asking, serving) }).await.unwrap();
    assert_eq!(answers, (String::new(), String::new()));
    assert_eq!(origin.connections(), (1, 1));
}
