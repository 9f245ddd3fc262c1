//! Users with access tokens: what scopes allow, whose sessions are whose, and a login from end to end.

use std::sync::Arc;

use toolcrib::{Manager, StartOptions, config::OauthConfig};

use super::{
    oauth::{guarded, issuer},
    *,
};
use crate::support::{
    auth_server::{Agree, AuthServer, Behavior},
    login::{guarded as remote, log_in},
    program::{SECRET, err, out},
    signing::{Signer, claims, now},
};

const SCOPES: &str = r#"required_scopes = ["mcp"]
[gateway.oauth.scopes]
"tools:read" = { tools = ["fix.*"], read_only = true }
"tools:write" = { tools = ["fix.effect", "fix.e*"] }
"#;

struct Realm {
    signer: Arc<Signer>,
    issuer: AuthServer,
    gate: Gate,
}

impl Realm {
    async fn new(more: &str) -> Self {
        let signer = Arc::new(Signer::new("one", "ES256"));
        let issuer = issuer(&signer).await;
        let gate = guarded(&issuer, more).await;
        Self { signer, issuer, gate }
    }

    fn token(&self, scope: &str, change: impl FnOnce(&mut Value)) -> String {
        let mut claims = claims(&self.issuer.base, &self.gate.resource());
        claims["scope"] = json!(scope);
        change(&mut claims);
        self.signer.token(&claims)
    }

    fn names(&self, path: &str, token: &str) -> Vec<String> {
        let listed = self.gate.list_with(path, token).json();
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    fn call(&self, path: &str, token: &str, tool: &str) -> Reply {
        let (mut headers, message) = modern(1, "tools/call", json!({"name": tool, "arguments": {}}));
        headers.push(("Authorization", format!("Bearer {token}")));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        self.gate.ask(&format!("POST {path}"), &headers, &message.to_string())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_say_which_tools_may_be_used() {
    let realm = Realm::new(SCOPES).await;
    let without = realm.gate.list_with("/mcp", &realm.token("other", |_| {}));
    assert_eq!(without.status, 403);
    let challenge = without.challenge();
    assert!(challenge.contains("error=\"insufficient_scope\"") && challenge.contains("scope=\"mcp\""));
    let reader = realm.token("mcp tools:read other", |_| {});
    // What another scope would allow is listed.
    let names = realm.names("/mcp", &reader);
    assert!(names.contains(&"fix__pid".to_owned()) && names.contains(&"fix__effect".to_owned()));
    assert!(!names.contains(&"fix__die".to_owned()), "no scope allows it: {names:?}");
    assert!(realm.call("/mcp", &reader, "fix__pid").text().parse::<u32>().is_ok());
    for (path, tool) in [("/mcp", "fix__effect"), ("/mcp/fix", "effect")] {
        let more = realm.call(path, &reader, tool);
        assert_eq!(more.status, 403);
        let challenge = more.challenge();
        assert!(challenge.contains("scope=\"mcp tools:read tools:write\""), "{challenge}");
        let place = format!("/.well-known/oauth-protected-resource{path}\"");
        assert!(challenge.contains(&place), "{challenge}");
    }
    assert_eq!(realm.call("/mcp", &reader, "fix__die").error(), -32602);
    let writer = realm.token("mcp tools:write", |_| {});
    assert_eq!(realm.call("/mcp", &writer, "fix__pid").status, 403);
    let both = realm.token("tools:read tools:write mcp", |_| {});
    assert!(realm.call("/mcp", &both, "fix__pid").text().parse::<u32>().is_ok());
    // In a session and in a batch too.
    let gate = &realm.gate;
    let made = gate.with_token(&reader, "POST /mcp", None, &initialize("2025-03-26"));
    let session = made.header("mcp-session-id").unwrap();
    let calls = json!([call(1, "fix__pid", &json!({})), call(2, "fix__effect", &json!({"n": 1}))]);
    let refused = gate.with_token(&reader, "POST /mcp", Some(session), &calls);
    assert_eq!(refused.status, 403, "{refused:?}");
    let step = gate.with_token(&both, "POST /mcp", Some(session), &call(3, "fix__env", &json!({})));
    assert_eq!(step.status, 200, "the session goes on with more");
}

/// Checks that a call of a tool that a search found, and that another scope would allow, is answered like a call by its own
/// name.
#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_was_found_asks_for_its_scope() {
    let realm = Realm::new(&format!("{SCOPES}[gateway]\nsearch = true\n")).await;
    let reader = realm.token("mcp tools:read", |_| {});
    let through = |arguments: Value| {
        let params = json!({"name": "call_tool", "arguments": arguments});
        let (mut headers, message) = modern(1, "tools/call", params);
        headers.push(("Authorization", format!("Bearer {reader}")));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        realm.gate.ask("POST /mcp", &headers, &message.to_string())
    };
    let more = through(json!({"name": "fix__effect", "arguments": {"n": 1}}));
    assert_eq!(more.status, 403, "{more:?}");
    let challenge = more.challenge();
    assert!(challenge.contains("insufficient_scope") && challenge.contains("tools:write"), "{challenge}");
    assert!(through(json!({"name": "fix__pid"})).text().parse::<u32>().is_ok());
    let none = through(json!({"name": "fix__die"}));
    assert!(none.text().contains("Unknown tool: fix__die"), "no scope allows it: {none:?}");
    assert_eq!(through(json!("x")).status, 200, "the model reads what is wrong");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_step_up_other_tools_are_not_there() {
    let realm = Realm::new(&format!("step_up = false\n{SCOPES}")).await;
    let reader = realm.token("mcp tools:read", |_| {});
    assert!(!realm.names("/mcp", &reader).contains(&"fix__effect".to_owned()));
    for (path, tool) in [("/mcp", "fix__effect"), ("/mcp/fix", "effect")] {
        let refused = realm.call(path, &reader, tool);
        let none = realm.call(path, &reader, "fix__none");
        assert_eq!((refused.error(), none.error()), (-32602, -32602));
        let words = |reply: &Reply| reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert_eq!(words(&refused).replace(tool, ""), words(&none).replace("fix__none", ""));
    }
    // A session that comes with more sees more, and hears so.
    let gate = &realm.gate;
    let made = gate.with_token(&reader, "POST /mcp", None, &initialize("2025-11-25"));
    let session = made.header("mcp-session-id").unwrap().to_owned();
    let both = realm.token("mcp tools:read tools:write", |_| {});
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let count = |token: &str| {
        let listed = gate.with_token(token, "POST /mcp", Some(&session), &list).json();
        listed["result"]["tools"].as_array().unwrap().len()
    };
    let (few, more) = (count(&reader), count(&both));
    assert!(few < more, "{few} {more}");
    let mut stream = gate.connect();
    let bearer = format!("Bearer {both}");
    let headers =
        [("Accept", "text/event-stream"), ("Mcp-Session-Id", &*session), ("Authorization", &*bearer)];
    stream.send("GET /mcp", &headers, "");
    assert_eq!(stream.head().status, 200);
    stream.until("notifications/tools/list_changed");
    assert_eq!(count(&reader), few, "each token by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_belongs_to_a_user_and_client() {
    let realm = Realm::new("").await;
    let gate = &realm.gate;
    let own = realm.token("", |_| {});
    let made = gate.with_token(&own, "POST /mcp", None, &initialize("2025-11-25"));
    let session = made.header("mcp-session-id").unwrap();
    let echo = call(1, "fix__echo", &json!({"text": "x"}));
    let renewed = realm.token("", |claims| claims["jti"] = json!("another"));
    assert_ne!(own, renewed);
    assert_eq!(gate.with_token(&renewed, "POST /mcp", Some(session), &echo).status, 200);
    for (claim, value) in [("sub", "user-2"), ("client_id", "client-2")] {
        let other = realm.token("", |claims| claims[claim] = json!(value));
        for (head, message) in
            [("POST /mcp", &echo), ("GET /mcp", &Value::Null), ("DELETE /mcp", &Value::Null)]
        {
            let refused = gate.with_token(&other, head, Some(session), message);
            assert_eq!(refused.status, 404, "{claim} {head}");
        }
    }
    let expired = realm.token("", |claims| claims["exp"] = json!(now() - 60));
    let refused = gate.with_token(&expired, "POST /mcp", Some(session), &echo);
    assert_eq!(refused.status, 401);
    assert!(refused.challenge().contains("it has expired"), "{refused:?}");
    // Who listens has to show a newer token in the end: this one counts for some seconds yet.
    let short = realm.token("", |claims| claims["exp"] = json!(now() - 27));
    let mut stream = gate.connect();
    let bearer = format!("Bearer {short}");
    let headers = [("Accept", "text/event-stream"), ("Mcp-Session-Id", session), ("Authorization", &*bearer)];
    stream.send("GET /mcp", &headers, "");
    assert_eq!(stream.head().status, 200);
    while !stream.part().is_empty() {}
    assert_eq!(gate.with_token(&short, "GET /mcp", Some(session), &Value::Null).status, 401);
    assert_eq!(gate.with_token(&own, "POST /mcp", Some(session), &echo).status, 200, "the session goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_both_kinds_are_taken_at_once() {
    let realm = Realm::new("[gateway]\ntoken = \"${GATE_TOKEN}\"\n").await;
    assert_eq!(realm.gate.list_with("/mcp", "gate-token-0123456789").status, 200);
    assert_eq!(realm.gate.list_with("/mcp", &realm.token("", |_| {})).status, 200);
    assert_eq!(realm.gate.list_with("/mcp", "gate-token-012345678x").status, 401);
    assert_eq!(realm.gate.serving["client"]["mcpServers"]["toolcrib"].get("headers"), None);
}

/// Our own client at our own gateway: it finds the authorization server, a user logs in, and tokens are renewed.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_logs_in_at_the_gateway() {
    let realm = Realm::new("required_scopes = [\"mcp\"]\n").await;
    let client = Crib::new(&format!("[servers.guarded]\nurl = \"{}\"\n", realm.gate.resource()));
    let (login, _) = log_in(&client, &[]).await;
    assert_eq!((&login["state"], &login["scopes"]), (&json!("logged_in"), &json!(["mcp"])));
    assert_eq!(realm.issuer.records().last("GET /as/authorize")["resource"], realm.gate.resource());
    let called = client.run(&["call", "guarded.fix__echo", "text=hello"]);
    assert_eq!(out(&called), "hello\n", "{}", err(&called));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_more_scopes_when_it_needs_them() {
    let realm = Realm::new(SCOPES).await;
    let config = remote(realm.gate.resource(), OauthConfig::default());
    let options = StartOptions::new().authorization_prompt(Arc::new(Agree(|answer| answer)));
    let manager = Manager::start_with(&config, options).await.unwrap();
    let asked = || realm.issuer.records().last("GET /as/authorize")["scope"].clone();
    assert_eq!(asked(), "mcp");
    let pid = manager.call("guarded", "fix__pid", serde_json::Map::new()).await.unwrap();
    assert!(pid.text().parse::<u32>().is_ok());
    assert!(asked().contains("tools:read"), "{}", asked());
    let env = manager.call("guarded", "fix__env", serde_json::Map::new()).await.unwrap();
    assert_eq!(realm.issuer.records().count("GET /as/authorize"), 2, "no more than is needed");
    // What the client sent went no further than the gateway.
    assert!(!env.text().contains("eyJ"), "{}", env.text());
    manager.shutdown().await;
}

/// Checks what the gateway logs of tokens, right and wrong, and what it sends to a server behind it.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_in_no_log_and_reach_no_server() {
    let signer = Arc::new(Signer::new("one", "ES256"));
    let issuer = issuer(&signer).await;
    let upstream = AuthServer::start(Behavior::default()).await;
    upstream.records().tokens.insert(SECRET.to_owned(), String::new());
    upstream.change(|behavior| behavior.leaks = true);
    let config = format!(
        "[servers.far]\nurl = \"{}\"\nheaders = {{ Authorization = \"Bearer ${{PLANTED_TOKEN}}\" }}\n\
         [gateway.oauth]\nissuer = \"{}\"\n",
        upstream.url(),
        issuer.base
    );
    let gate = tokio::task::spawn_blocking(move || {
        let crib = Crib::new(&config);
        let log = crib.folder().join("log");
        Gate::of(crib, &[], Some(&log))
    });
    let gate = gate.await.unwrap();
    let right = signer.token(&claims(&issuer.base, &gate.resource()));
    let wrong = signer.token(&claims("https://other.example", &gate.resource()));
    assert_eq!(gate.list_with("/mcp", &wrong).status, 401);
    let made = gate.with_token(&right, "POST /mcp", None, &initialize("2025-11-25"));
    let session = made.header("mcp-session-id").unwrap();
    let who = gate.with_token(&right, "POST /mcp", Some(session), &call(1, "far__who", &json!({})));
    assert_eq!(who.text(), format!("called with {SECRET}"), "the server has a token of its own");
    let log = std::fs::read_to_string(gate.crib.folder().join("log")).unwrap();
    assert!(log.contains("server=far"), "{log}");
    for token in [&right, &wrong] {
        assert!(token.split('.').all(|part| !log.contains(part)), "{log}");
    }
}
