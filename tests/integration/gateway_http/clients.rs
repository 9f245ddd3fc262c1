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
