//! Pooling against a real loopback server, told by the count of connections.

use axum::{Router, routing::get};
use tokio::{net::TcpListener, task::JoinSet};

use super::*;

fn clients() -> HttpClients {
    HttpClients::new(&HttpConfig::default()).unwrap()
}

/// Serves until the set is dropped.
pub(super) async fn serve(router: Router) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, server)
}

async fn ask(client: &HttpClient, url: &str) -> Answer {
    let mut request = Request::new(Full::default());
    *request.uri_mut() = url.parse().unwrap();
    client.send(request).await.unwrap()
}

async fn fetch(client: &HttpClient, url: &str) {
    let mut answer = ask(client, url).await;
    assert!(answer.status.is_success());
    while answer.chunk().await.unwrap().is_some() {}
}

#[tokio::test]
async fn connections_to_tools_are_pooled_unless_they_stall() {
    let (url, _server) = serve(Router::new().route("/", get(|| async { "ok" }))).await;
    let clients = clients();
    for _ in 0..3 {
        fetch(clients.search_for(&url), &url).await;
        fetch(clients.tools_for(&url), &url).await;
        fetch(clients.unpooled_tools_for(&url), &url).await;
    }
    assert_eq!(clients.search_for(&url).connections(), ConnectionCounts { opened: 1 });
    assert_eq!(clients.tools_for(&url).connections(), ConnectionCounts { opened: 1 });
    assert_eq!(clients.unpooled_tools_for(&url).connections(), ConnectionCounts { opened: 3 });
}

#[tokio::test]
async fn redirects_lead_within_their_origin() {
    let (elsewhere, _other) = serve(Router::new().route("/", get(|| async { "stolen" }))).await;
    let routes = Router::new()
        .route("/", get(|| async { "home" }))
        .route("/here", get(|| async { axum::response::Redirect::temporary("/") }))
        .route("/away", get(move || async move { axum::response::Redirect::temporary(&elsewhere) }));
    let (url, _server) = serve(routes).await;
    let clients = clients();
    let leads = async |path| {
        let asked = Url::parse(&format!("{url}{path}")).unwrap();
        moved(&ask(clients.tools_for(&url), asked.as_str()).await, &asked).map(String::from)
    };
    assert_eq!(leads("here").await, Some(url.clone()));
    assert_eq!(leads("away").await, None);
    assert_eq!(leads("").await, None, "no redirect");
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
