//! Whether somebody is logged in at a remote server, by what is stored.

use super::Finding;
use crate::{
    config::{Config, HttpEndpoint, OauthConfig},
    oauth::{self, LoginState},
    tool::ServerName,
};

/// The server is not asked: whether it demands a login is known only if the configuration has settings for one.
pub(super) fn remote(config: &Config, name: &ServerName, endpoint: &HttpEndpoint) -> Finding {
    let login = oauth::status_of(config, name);
    let help = format!("toolcrib login {name}");
    let issuer = login.issuer.as_deref().unwrap_or("its authorization server");
    match login.state {
        LoginState::None if endpoint.oauth != OauthConfig::default() => {
            Finding::warn(name.as_str(), "a URL, and nobody is logged in").help(help)
        }
        LoginState::None | LoginState::Header => Finding::ok(name.as_str(), "a URL"),
        LoginState::Client => Finding::ok(name.as_str(), "a URL, with the client's own access"),
        LoginState::LoggedIn => Finding::ok(name.as_str(), format!("a URL, logged in at {issuer}")),
        LoginState::Expired => Finding::warn(name.as_str(), "a URL, and the login has expired").help(help),
        LoginState::TooLittle => {
            let text = "a URL, logged in with less access than it has demanded since";
            Finding::warn(name.as_str(), text).help(help)
        }
    }
}
