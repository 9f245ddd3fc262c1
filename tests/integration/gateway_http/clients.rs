//! The library's own client for remote servers at the gateway, with and without TLS.

use toolcrib::{CancellationToken, Config, Env, Manager, StartOptions, gateway::GatewayServer};

use super::*;

#[tokio::test]
async fn a_gateway_can_be_the_server_of_another_one() {
    let gate = Gate::new(FIXTURE);
    let config = format!("[servers.far]\nurl = \"http://{}/mcp/fix\"\n", gate.address);
    let config = Config::parse(&config, None, gate.crib.folder(), &Env::process()).unwrap();
    let manager = Manager::start(&config).await.unwrap();
    let arguments = |text: &str| serde_json::Map::from_iter([("text".to_owned(), json!(text))]);
    let answers = futures_util::future::join_all((0..50).map(|number| {
        let manager = &manager;
        async move { manager.call("far", "echo", arguments(&number.to_string())).await }
    }));
    for (number, answer) in answers.await.into_iter().enumerate() {
        assert_eq!(answer.unwrap().text(), number.to_string());
    }
    manager.shutdown().await;
}

#[tokio::test]
async fn an_embedder_serves_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, signed.cert.pem()).unwrap();
    std::fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let text = "[servers.calc]\nbuiltin = \"calc\"\n[gateway]\nlisten = \"127.0.0.1:0\"\n\
        tls = { cert = \"cert.pem\", key = \"key.pem\" }\n";
    let config = Config::parse(text, None, folder.path(), &Env::process()).unwrap();
    let gateway = GatewayServer::bind(&config).await.unwrap();
    let url = gateway.url().unwrap();
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let manager = Manager::start_with(&config, gateway.start_options(StartOptions::new())).await.unwrap();
    let stop = CancellationToken::new();
    let asking = async {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(signed.cert.der().clone()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let address = url.strip_prefix("https://").unwrap().strip_suffix("/mcp").unwrap().to_owned();
        let stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(client));
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await;
        stop.cancel();
        answer
    };
    let ((), answer) = tokio::join!(gateway.serve(&manager, &stop), asking);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{answer}");
    manager.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_own_servers_meets_added_ones() {
    let folder = tempfile::tempdir().unwrap();
    let own = |name: &str| {
        format!(
            "[servers.{name}]\ncommand = {FIXTURE:?}\nscope = \"client\"\n",
            FIXTURE = crate::support::FIXTURE
        )
    };
    let config = |names: &[&str]| {
        let servers: String = names.iter().map(|name| own(name)).collect();
        let text = format!("{servers}[gateway]\nlisten = \"127.0.0.1:0\"\n");
        Config::parse(&text, None, folder.path(), &Env::process()).unwrap()
    };
    let gateway = GatewayServer::bind(&config(&["one"])).await.unwrap();
    let url = gateway.url().unwrap();
    let options = gateway.start_options(StartOptions::new());
    let manager = Manager::start_with(&config(&["one"]), options).await.unwrap();
    let stop = CancellationToken::new();
    let asking = async {
        let far = format!("[servers.far]\nurl = \"{url}\"\n");
        let far = Config::parse(&far, None, folder.path(), &Env::process()).unwrap();
        let client = Manager::start(&far).await.unwrap();
        let pid = async |tool: &str| client.call("far", tool, serde_json::Map::new()).await.unwrap().text();
        let one = pid("one__pid").await;
        manager.apply(&config(&["one", "two"])).await.unwrap();
        let listed = async {
            while client.catalog().find("far", "two__pid").is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), listed).await.expect("it is told of the new tools");
        let two = pid("two__pid").await;
        assert_eq!(pid("two__pid").await, two);
        assert_eq!(pid("one__pid").await, one, "what has not changed stays");
        manager.apply(&config(&["two"])).await.unwrap();
        assert_eq!(pid("two__pid").await, two);
        assert!(
            client.call("far", "one__pid", serde_json::Map::new()).await.is_err(),
            "it is not there any more"
        );
        client.shutdown().await;
        stop.cancel();
    };
    tokio::join!(gateway.serve(&manager, &stop), asking);
    manager.shutdown().await;
}
