//! Why access to a remote server was not granted.

use std::fmt;

use crate::{
    error::{Error, ErrorCode, Phase, ServerError},
    tool::ServerName,
};

/// The kind of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OauthErrorKind {
    /// A user has to log in.
    LoginRequired,
    /// An address gave no answer, or none that can be used: it may be better later.
    Unreachable,
    /// The authorization server refused, with this code of RFC 6749.
    Refused(String),
    /// The server's metadata, or the configuration, cannot be used.
    Unusable,
}

/// A failure without the server's name. Its words hold no secret.
#[derive(Debug, Clone)]
pub struct OauthError {
    pub(super) kind: OauthErrorKind,
    /// The problem, in words.
    pub what: String,
    /// Advice for the person who reads it.
    pub help: Option<String>,
}

impl OauthError {
    pub(super) fn unreachable(what: impl Into<String>) -> Self {
        Self { kind: OauthErrorKind::Unreachable, what: what.into(), help: None }
    }

    pub(super) fn unusable(what: impl Into<String>) -> Self {
        Self { kind: OauthErrorKind::Unusable, what: what.into(), help: None }
    }

    pub(super) fn login_required(what: impl Into<String>) -> Self {
        Self { kind: OauthErrorKind::LoginRequired, what: what.into(), help: None }
    }

    #[must_use]
    pub(super) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Whether the authorization server refused with one of these codes.
    pub(super) fn is_refusal(&self, codes: &[&str]) -> bool {
        matches!(&self.kind, OauthErrorKind::Refused(code) if codes.contains(&code.as_str()))
    }

    /// Advice on what to do about it.
    pub(super) fn advice(&self, server: &ServerName) -> String {
        match &self.help {
            Some(help) => help.clone(),
            None if self.kind == OauthErrorKind::LoginRequired => {
                format!("log in with `toolcrib login {server}`, or set `headers`")
            }
            None if self.kind == OauthErrorKind::Unreachable => {
                "try again later; check the network and proxies".to_owned()
            }
            None => format!(
                "check `oauth` of the server, and what its operator says of it; `toolcrib logout {server}` forgets the login"
            ),
        }
    }

    /// The error of a login.
    pub(super) fn named(self, server: &ServerName) -> Error {
        let code = match self.kind {
            OauthErrorKind::Unreachable => ErrorCode::SpawnFailed,
            _ => ErrorCode::LoginRequired,
        };
        let what = "could not be logged in at".to_owned();
        let mut error = ServerError::new(server.clone(), Phase::Handshake, code, what);
        error.help = Some(self.advice(server));
        error.causes.push(self.what);
        error.into()
    }
}

impl fmt::Display for OauthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for OauthError {}

/// Words of an authorization server, short and in one line.
pub(super) fn words(text: &str, most: usize) -> String {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().take(most).map(visible).collect()
}
