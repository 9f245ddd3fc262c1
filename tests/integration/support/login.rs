//! A remote server that asks for a login, and a user who logs in.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::Stdio,
};

use serde_json::Value;
use toolcrib::{
    Config, Endpoint, ServerConfig, ServerName,
    config::{HttpEndpoint, OauthConfig},
};

use super::{auth_server::visit, crib::Crib, program::Running};

/// One remote server that is called `guarded`.
pub(crate) fn guarded(url: String, oauth: OauthConfig) -> Config {
    let mut endpoint = HttpEndpoint::new(url);
    endpoint.oauth = oauth;
    Config::new([ServerConfig::new(ServerName::new("guarded").unwrap(), Endpoint::Http(endpoint))])
}

/// Logs in as a user does with a browser.
pub(crate) async fn log_in(crib: &Crib, words: &[&str]) -> (Value, String) {
    let words = [&["--json", "login", "guarded", "--no-browser"], words].concat();
    let mut command = crib.command(&words);
    let mut child = Running::from(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    // The first use of a configuration is told before.
    let address = loop {
        let begin = line.len();
        assert!(said.read_line(&mut line).unwrap() > 0, "{line}");
        let event: Value = serde_json::from_str(&line[begin..]).unwrap_or_else(|_| panic!("{line}"));
        if let Some(address) = event["open"].as_str() {
            break address.to_owned();
        }
    };
    let (_, answer, _) = visit(&address).await;
    assert_eq!(visit(&answer.unwrap()).await.0, 200);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    said.read_to_string(&mut line).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
    (serde_json::from_str(&text).unwrap(), line)
}
