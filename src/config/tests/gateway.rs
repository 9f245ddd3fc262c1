//! The `[gateway]` table: its keys, its tokens, and what a broken one spoils.

use std::{path::Path, time::Duration};

use crate::config::{Config, Env, GatewayTls, ToolSearch};

fn parsed(table: &str, variables: &[(&str, &str)]) -> Config {
    let env = Env::new("/w", variables.iter().copied());
    let text = format!("[servers.a]\ncommand = 'x'\n[gateway]\n{table}");
    Config::parse(&text, None, Path::new("/w"), &env).unwrap()
}

#[test]
fn every_key_of_the_gateway_is_read() {
    let table = r#"
        listen = "0.0.0.0:80"
        tools = ["a.*"]
        read_only = true
        origins = ["HTTPS://Example.com"]
        max_body = "1KiB"
        idle = "1m"
        read_timeout = "2s"
        max_connections = 3
        max_sessions = 4
        requests_per_second = 5
        max_in_flight = "unlimited"
        tls = { cert = "c.pem", key = "${KEYS}/k.pem" }
        sse = true
        search = "auto"
        token = "${ONE}"
        tokens = [
            { name = "two", token = "second-secret-token", tools = ["a.b"], read_only = true },
            { token = "${NONE:-}" },
        ]
    "#;
    let config = parsed(table, &[("KEYS", "/keys"), ("ONE", "first-secret-token")]);
    let gateway = config.gateway.unwrap();
    assert_eq!(gateway.search, ToolSearch::Auto);
    for (text, search) in [("true", ToolSearch::On), ("false", ToolSearch::Off)] {
        assert_eq!(parsed(&format!("search = {text}"), &[]).gateway.unwrap().search, search);
    }
    assert_eq!(gateway.listen.to_string(), "0.0.0.0:80");
    assert_eq!((gateway.tools.unwrap()[0].as_str(), gateway.read_only, gateway.sse), ("a.*", true, true));
    assert_eq!((gateway.origins, gateway.max_body), (vec!["https://example.com".to_owned()], 1024));
    assert_eq!((gateway.idle, gateway.read_timeout), (Duration::from_secs(60), Duration::from_secs(2)));
    assert_eq!((gateway.max_connections, gateway.max_sessions), (3, 4));
    assert_eq!((gateway.requests_per_second.unwrap().get(), gateway.max_in_flight), (5, None));
    assert_eq!(gateway.tls, Some(GatewayTls::new("/w/c.pem", "/keys/k.pem")));
    let [one, two] = &*gateway.tokens else { panic!("{:?}", gateway.tokens) };
    assert_eq!((&*one.name, &*one.token, one.read_only), ("token 1", "first-secret-token", false));
    assert_eq!((&*two.name, &*two.token, two.read_only), ("two", "second-secret-token", true));
    assert!(one.tools.is_none() && two.tools.as_ref().unwrap()[0].is_match("a.b"));
    let hidden = config.secrets.hide("first-secret-token second-secret-token");
    assert_eq!(hidden, "**** ****", "written out or not");
    assert!(!format!("{:?}", gateway.tokens).contains("secret"));
}

#[test]
fn a_broken_gateway_is_an_error_only_for_who_serves() {
    for (table, wanted) in [
        ("token = '${UNSET}'", "UNSET"),
        ("token = 'short'", "is shorter than 16 bytes"),
        (
            "token = '0123456789abcdef'\ntokens = [{ token = '0123456789abcdef' }]",
            "is the same as another token",
        ),
    ] {
        let config = parsed(table, &[]);
        assert!(config.servers["a"].server.is_ok());
        let error = config.gateway.unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("gateway.token"), "{error}");
        assert!(!error.contains("abcdef"), "{error}");
    }
}
