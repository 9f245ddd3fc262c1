//! Pooling against a real loopback server, told by the count of connections.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{Router, routing::get};
use tokio::{net::TcpListener, sync::Barrier, task::JoinSet};

use super::*;

fn clients() -> HttpClients {
    HttpClients::new(&HttpConfig::default()).unwrap()
}

/// Serves until the set is dropped.
async fn serve(router: Router) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, server)
}

async fn fetch(client: &HttpClient, url: &str) {
    let response = client.client().get(url).send().await.unwrap();
    assert!(response.status().is_success());
    response.bytes().await.unwrap();
}

#[tokio::test]
async fn requests_one_after_the_other_share_a_connection() {
    let (url, _server) = serve(Router::new().route("/", get(|| async { "ok" }))).await;
    let clients = clients();
    let models = clients.models_for(&url);
    for _ in 0..50 {
        fetch(models, &url).await;
    }
    assert_eq!(models.connections(), ConnectionCounts { opened: 1 });
    let plain = clients.tools_for(&url);
    for _ in 0..3 {
        fetch(plain, &url).await;
    }
    assert_eq!(plain.connections(), ConnectionCounts { opened: 3 }, "plain http to tools is not pooled");
}

#[tokio::test]
async fn fifty_at_once_are_fifty_in_flight() {
    let barrier = Arc::new(Barrier::new(50));
    let peak = Arc::new(AtomicUsize::new(0));
    let now = Arc::new(AtomicUsize::new(0));
    let (gate, highest) = (Arc::clone(&barrier), Arc::clone(&peak));
    // Nobody is answered before all fifty are there: a hidden cap would hang here.
    let handler = move || async move {
        highest.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        gate.wait().await;
        now.fetch_sub(1, SeqCst);
        "ok"
    };
    let (url, _server) = serve(Router::new().route("/", get(handler))).await;
    let clients = clients();
    for _ in 0..2 {
        let mut burst = JoinSet::new();
        for _ in 0..50 {
            let (client, url) = (clients.models_for(&url).clone(), url.clone());
            burst.spawn(async move { fetch(&client, &url).await });
        }
        burst.join_all().await;
    }
    assert_eq!(peak.load(SeqCst), 50);
    assert_eq!(clients.models_for(&url).connections().opened, 50, "the second burst opens none");
}

#[tokio::test]
async fn redirects_stay_within_their_origin() {
    let (elsewhere, _other) = serve(Router::new().route("/", get(|| async { "stolen" }))).await;
    let routes = Router::new()
        .route("/", get(|| async { "home" }))
        .route("/here", get(|| async { axum::response::Redirect::temporary("/") }))
        .route("/away", get(move || async move { axum::response::Redirect::temporary(&elsewhere) }));
    let (url, _server) = serve(routes).await;
    let clients = clients();
    let status = async |client: &HttpClient, path| {
        client.client().get(format!("{url}{path}")).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(clients.tools_for(&url), "here").await, 200);
    assert_eq!(status(clients.tools_for(&url), "away").await, 307);
    assert_eq!(status(clients.models_for(&url), "here").await, 307, "a POST would become a GET");
}

#[test]
fn loopback_is_recognised() {
    for (url, expected) in [
        ("http://127.0.0.1:8080/v1", true),
        ("http://[::1]:8080/v1", true),
        ("http://localhost/v1", true),
        ("http://127.1.2.3/", true),
        ("http://0.0.0.0:8000/v1", true),
        ("http://localhost.example.test/", false),
        ("http://192.168.0.1/", false),
    ] {
        assert_eq!(is_loopback(&Url::parse(url).unwrap()), expected, "{url}");
    }
}

/// What the kernel waits for on the client's side of a connection to `listener`: the timer in its table of sockets.
#[cfg(target_os = "linux")]
async fn timer(client: &HttpClient, listener: &TcpListener) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let at = listener.local_addr().unwrap();
    let url = format!("http://{at}/");
    let answer = async {
        let (mut socket, peer) = listener.accept().await.unwrap();
        assert_ne!(socket.read(&mut [0; 1024]).await.unwrap(), 0);
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        (socket, peer)
    };
    let ((), (_socket, peer)) = tokio::join!(fetch(client, &url), answer);
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
    let clients = clients();
    assert_eq!(timer(&clients.models_loopback, &listener).await, none);
    assert_eq!(timer(&clients.models, &listener).await, keepalive);
}
