//! Errors of a remote server in words, with all that is behind them and without addresses.

use std::{error::Error as StdError, time::Duration};

use hyper::StatusCode;
use url::Url;

use super::http::HttpFailure;
use crate::{
    config::origin_of,
    http::RequestError,
    oauth::OauthError,
    process::WriteError,
    session::{
        connect::failure::Cause,
        result::reply::{MissingAccess, NoReply},
    },
};

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum RemoteFailure {
    /// The connection had ended before.
    NotSent,
    /// It ended meanwhile.
    Ended,
    /// Its time is over.
    Timeout(Duration),
    /// There is no answer over HTTP.
    Http(HttpFailure),
    /// An answer that is no success, and the beginning of its text.
    Status(StatusCode, String),
    /// Anything else, in words.
    Broken(String),
}

impl From<HttpFailure> for RemoteFailure {
    fn from(failure: HttpFailure) -> Self {
        Self::Http(failure)
    }
}

impl From<RequestError> for RemoteFailure {
    fn from(error: RequestError) -> Self {
        Self::Http(error.into())
    }
}

impl RemoteFailure {
    /// Whether nothing of the request can have reached the server.
    fn never_left(&self) -> bool {
        use RequestError::{ConnectTimeout, NoConnection};
        matches!(self, Self::Http(HttpFailure::Unanswered(ConnectTimeout | NoConnection(_))))
    }

    /// Whether a server of the transport of 2024-11-05 may have answered.
    pub(super) fn is_of_old_transport(&self) -> bool {
        matches!(self, Self::Status(status, _) if [400, 404, 405].contains(&status.as_u16()))
    }

    /// In words, for a server at `url`.
    pub(super) fn words(&self, url: &Url) -> String {
        match self {
            Self::NotSent => "the connection had ended".to_owned(),
            Self::Ended => "the connection ended".to_owned(),
            Self::Timeout(limit) => format!("there was no answer within {limit:?}"),
            Self::Http(failure) => chain(failure, url),
            Self::Status(status, told) if told.is_empty() => format!("HTTP {status}"),
            Self::Status(status, told) => format!("HTTP {status}: {}", without_address(told, url)),
            Self::Broken(why) => why.clone(),
        }
    }

    /// For a request of the server at `url`.
    pub(super) fn into_no_reply(self, url: &Url) -> NoReply {
        match self {
            Self::NotSent => NoReply::NotSent,
            Self::Ended => NoReply::Ended { never_left: false },
            Self::Timeout(limit) => NoReply::Timeout(limit),
            Self::Http(HttpFailure::NotAuthorized(error)) if !error.is_unreachable() => {
                NoReply::Unauthorized(missing_access(&error))
            }
            Self::Http(_) => {
                // Without authorization nothing is run.
                let refused =
                    matches!(self, Self::Http(HttpFailure::Challenged(_) | HttpFailure::NotAuthorized(_)));
                let unheard = self.never_left() || refused;
                let (may_have_left, reason) = (!unheard, self.words(url));
                NoReply::NotWritten(WriteError { may_have_left, reason })
            }
            Self::Status(..) | Self::Broken(_) => NoReply::Broken(self.words(url)),
        }
    }

    /// For a connection that does not come to stand.
    pub(super) fn into_cause(self, url: &Url) -> Cause {
        match &self {
            Self::NotSent | Self::Ended => Cause::Closed,
            Self::Timeout(_) => Cause::Timeout,
            Self::Http(HttpFailure::NotAuthorized(error)) if error.is_unreachable() => {
                Cause::Unreachable(error.what.clone())
            }
            Self::Http(HttpFailure::NotAuthorized(error)) => Cause::Unauthorized(missing_access(error)),
            Self::Http(HttpFailure::Challenged(challenge))
                if challenge.status == StatusCode::UNAUTHORIZED =>
            {
                let why = format!(
                    "{} asks for authorization, and refuses the `Authorization` of the configuration",
                    origin_of(url.as_str())
                );
                let help =
                    "check `headers` and `url`; or remove the header, and use `toolcrib login`".to_owned();
                Cause::Unauthorized(MissingAccess { why, help })
            }
            _ if self.never_left() => {
                Cause::Unreachable(format!("{}: {}", origin_of(url.as_str()), self.words(url)))
            }
            _ => Cause::Protocol(self.words(url)),
        }
    }
}

/// What access a user has to give.
fn missing_access(error: &OauthError) -> MissingAccess {
    MissingAccess { why: error.what.clone(), help: error.help.clone().unwrap_or_default() }
}

/// An error and what is behind it, each thing once.
fn chain(error: &HttpFailure, url: &Url) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut next: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(link) = next {
        let text = without_address(&link.to_string(), url);
        if !words.iter().any(|word| word.contains(&text)) {
            words.push(text);
        }
        next = link.source();
    }
    words.join(": ")
}

/// Shows of `url` only what leads to its host: its path may hold a secret, too.
fn without_address(text: &str, url: &Url) -> String {
    let mut shown = url.clone();
    let _ = shown.set_username("").and_then(|()| shown.set_password(None));
    let mut text = text.to_owned();
    for address in [url.as_str(), shown.as_str()] {
        // Of a bare origin there is nothing to hide.
        if address.trim_end_matches('/') != origin_of(address) {
            text = text.replace(address, &origin_of(address));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_host_of_addresses_is_shown() {
        let url = Url::parse("http://me:pw@host:1/secret/path(1)?key=x").unwrap();
        for (text, shown) in [
            ("http://host:1/secret/path(1)?key=x moved", "http://host:1 moved"),
            ("asked http://me:pw@host:1/secret/path(1)?key=x", "asked http://host:1"),
            ("nothing of it", "nothing of it"),
        ] {
            assert_eq!(without_address(text, &url), shown);
        }
        let bare = Url::parse("http://host:1/").unwrap();
        assert_eq!(without_address("at http://host:1/ there", &bare), "at http://host:1/ there");
    }

    #[test]
    fn each_cause_of_an_error_is_shown_once() {
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "there is no connection");
        let failure = RemoteFailure::from(RequestError::NoConnection(refused.into()));
        let url = Url::parse("http://host:1/mcp").unwrap();
        assert_eq!(failure.words(&url), "there is no connection");
        assert!(
            matches!(failure.into_cause(&url), Cause::Unreachable(why) if why == "http://host:1: there is no connection")
        );
    }
}
