//! Tests pools, routes and counts with real sockets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, routing::get};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Barrier,
    task::JoinSet,
};

use super::*;
use crate::{
    config::{HttpConfig, HttpVersion},
    http::{HttpClients, ModelPool, client::Traffic, proxies::Proxies, tests::serve},
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
async fn fetch(origin: &ModelServer, at: &str) -> String {
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

/// Reads up to the end of a request's head.
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
    let mut first = answered().await;
    first.shutdown().await.unwrap();
    let noticed = timeout(LONG, first.read(&mut [0])).await.unwrap();
    assert_eq!(noticed.unwrap(), 0, "the client closes its side, too");
    let mut second = answered().await;
    assert_eq!(origin.connections(), (2, 0));
    // Closed by the client, who is not asked for anything meanwhile.
    let ended = timeout(LONG, second.read(&mut [0])).await.unwrap();
    assert_eq!(ended.unwrap(), 0);
}

#[tokio::test]
async fn an_unread_answer_closes_its_connection() {
    let routes = Router::new()
        .route("/", get(|| async { "ok" }))
        // More than sockets take in.
        .route("/long", get(|| async { "x".repeat(64 << 20) }));
    let (at, _server) = serve(routes).await;
    let origin = clients().model_server(&url(&at), ModelPool::default()).unwrap();
    drop(origin.get(&url(&format!("{at}long"))).await.unwrap());
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

/// The server at `to`, by `access`.
fn by(access: Access, to: &str) -> Result<ModelServer, String> {
    let usual = clients().models.usual;
    ModelServer::new(url(to), Traffic { access, connect_timeout: LONG, ..usual }.client())
}

/// The same where one proxy is set for all.
fn through(proxy: &str, to: &str) -> Result<ModelServer, String> {
    by(Access::Proxied(Proxies::one(proxy)), to)
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
    let origin = through(&proxy, "http://models.test").unwrap();
    let (_, asked) = tokio::join!(fetch(&origin, plain), answer());
    assert!(asked.starts_with(&format!("GET {plain} HTTP/1.1\r\n")), "{asked}");
    assert!(asked.contains("\r\nhost: models.test\r\n"), "{asked}");
    assert!(asked.contains("\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");

    // The proxy accepts, but no TLS server follows.
    let origin = through(&proxy, "https://models.test").unwrap();
    let no_one = url(encrypted);
    let (refused, asked) = tokio::join!(origin.get(&no_one), answer());
    assert!(matches!(refused, Err(RequestError::NoConnection(_))), "{refused:?}");
    assert!(asked.starts_with("CONNECT models.test:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("\r\nproxy-authorization: Basic bWU6c2VjcmV0\r\n"), "{asked}");
    assert!(asked.contains("\r\nuser-agent: toolcrib/"), "{asked}");

    let refused = through("socks5://127.0.0.1:1", "http://models.test").unwrap_err();
    assert_eq!(refused, "the proxy for it is a socks5:// one, where http:// and https:// are known");
}

/// Returns the timer in the kernel's table of sockets for the client's side of a connection to `listener`.
#[cfg(target_os = "linux")]
async fn timer(origin: &ModelServer, listener: &TcpListener) -> String {
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
    let to = format!("http://{}", listener.local_addr().unwrap());
    assert_eq!(timer(&by(Access::Near, &to).unwrap(), &listener).await, none);
    assert_eq!(timer(&by(Access::Direct, &to).unwrap(), &listener).await, keepalive);
}

#[tokio::test]
async fn idle_connections_are_kept_as_long_as_configured() {
    // What the server says about it is not followed.
    const TOLD: &[u8] = b"HTTP/1.1 200 OK\r\nkeep-alive: timeout=75, max=9\r\ncontent-length: 0\r\n\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/", listener.local_addr().unwrap());
    let pool = |idle| ModelPool { idle, ..ModelPool::default() };
    let clients = clients();
    let patient = clients.model_server(&url(&at), pool(LONG)).unwrap();
    let usual = clients.model_server(&url(&at), ModelPool::default()).unwrap();
    let answer = async |socket: &mut TcpStream| {
        request(socket).await;
        socket.write_all(TOLD).await.unwrap();
    };
    let answered = async |server: &ModelServer| {
        let answering = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            answer(&mut socket).await;
            socket
        };
        tokio::join!(fetch(server, &at), answering).1
    };
    let (mut kept, mut closed) = (answered(&patient).await, answered(&usual).await);
    let ended = timeout(LONG, closed.read(&mut [0])).await.unwrap();
    assert_eq!(ended.unwrap(), 0, "the client closes it before most servers do");
    // Longer than the usual ones are kept.
    tokio::join!(fetch(&patient, &at), answer(&mut kept));
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
