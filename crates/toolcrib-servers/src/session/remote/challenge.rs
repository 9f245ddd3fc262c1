//! A refusal for want of authorization: the words of the server, and the credentials of the configuration that it refused.

use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};
use url::Url;

use crate::http::HttpAnswer;

/// Parts of the names of headers and parameters that vouch for somebody.
const CREDENTIALS: [&str; 8] =
    ["auth", "key", "token", "secret", "cookie", "password", "credential", "session"];

/// A refusal for want of authorization.
#[derive(Debug)]
pub(in crate::session) struct Challenge {
    pub(super) status: StatusCode,
    /// All headers `WWW-Authenticate`, joined with commas.
    pub(super) wants: String,
    /// Words in the body of the answer.
    said: String,
    /// Names of the configured credentials that the request had.
    configured: Vec<String>,
}

impl Challenge {
    /// Whether an answer is one.
    pub(super) fn is_in(answer: &HttpAnswer) -> bool {
        let has_header = answer.headers.contains_key(WWW_AUTHENTICATE);
        answer.status == StatusCode::UNAUTHORIZED || (answer.status == StatusCode::FORBIDDEN && has_header)
    }

    /// The challenge in `answer`, for which [`Challenge::is_in`] holds. The request went to `url` with these configured
    /// headers.
    pub(super) fn new(answer: &HttpAnswer, said: String, url: &Url, headers: &HeaderMap) -> Self {
        let wants = answer.headers.get_all(WWW_AUTHENTICATE).iter();
        let wants: Vec<_> = wants.map(|wants| String::from_utf8_lossy(wants.as_bytes())).collect();
        Self { status: answer.status, wants: wants.join(", "), said, configured: configured(url, headers) }
    }

    /// The words in the body of the answer.
    pub(super) fn said(&self) -> &str {
        &self.said
    }

    /// Whether the server has refused what the configuration vouches with: no login is what is missing then.
    pub(super) fn is_about_configured(&self) -> bool {
        !self.configured.is_empty()
    }

    /// The refused part of the configuration: continues the sentence "it refuses ...".
    pub(super) fn configured(&self) -> Option<String> {
        self.is_about_configured().then(|| format!("{} of the configuration", self.configured.join(" and ")))
    }

    /// Whether it names ways to log in, and a token is none of them.
    pub(super) fn wants_no_token(&self) -> bool {
        let wants = self.wants.to_ascii_lowercase();
        !wants.trim().is_empty() && !wants.contains("bearer") && !wants.contains("dpop")
    }

    /// A parameter that it names, in quotes or without.
    fn parameter(&self, name: &str) -> Option<&str> {
        let key = format!("{name}=");
        let at = self.wants.to_ascii_lowercase().find(&key)? + key.len();
        let value = self.wants.get(at..)?;
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?.0,
            None => value.split([',', ';', ' ', '\t']).next()?,
        };
        (!value.is_empty()).then_some(value)
    }
}

impl std::fmt::Display for Challenge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        /// The most characters of a parameter that are shown.
        const MOST: usize = 200;
        write!(f, "HTTP {}", self.status)?;
        let short = |text: &str| text.chars().take(MOST).collect::<String>();
        let described = self.parameter("error_description").or_else(|| self.parameter("error"));
        let scheme = self.wants_no_token().then(|| self.wants.split(' ').next()).flatten();
        let parts = [
            Some(self.said.clone())
                .filter(|said| !said.is_empty() && Some(said.as_str()) != self.status.canonical_reason()),
            described.filter(|described| !self.said.contains(described)).map(short),
            self.parameter("scope").map(|scope| format!("it asks for the scope `{}`", short(scope))),
            scheme.map(|scheme| format!("it asks for a login of the kind `{}`", short(scheme))),
        ];
        parts.iter().flatten().try_for_each(|part| write!(f, ": {part}"))
    }
}

/// Names of the configured credentials, without their values.
fn configured(url: &Url, headers: &HeaderMap) -> Vec<String> {
    let vouches = |name: &str| {
        let name = name.to_ascii_lowercase();
        CREDENTIALS.iter().any(|part| name.contains(part))
    };
    let mut parts: Vec<String> = Vec::new();
    for name in headers.keys().filter(|name| vouches(name.as_str())) {
        // As it is written most often.
        let words = name.as_str().split('-').map(|word| {
            let (first, rest) = word.split_at(word.chars().next().map_or(0, char::len_utf8));
            first.to_ascii_uppercase() + rest
        });
        parts.push(format!("the `{}`", words.collect::<Vec<_>>().join("-")));
    }
    if !headers.contains_key(AUTHORIZATION) && (!url.username().is_empty() || url.password().is_some()) {
        parts.push("the name and password in `url`".to_owned());
    }
    if url.query_pairs().any(|(name, _)| vouches(&name)) {
        parts.push("the key in `url`".to_owned());
    }
    parts
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    fn challenge(status: StatusCode, wants: &str, said: &str) -> Challenge {
        Challenge { status, wants: wants.to_owned(), said: said.to_owned(), configured: Vec::new() }
    }

    #[test]
    fn the_scope_is_found_in_an_http_refusal() {
        for (wants, found) in [
            (
                r#"Bearer error="insufficient_scope", scope="files:read files:write""#,
                Some("files:read files:write"),
            ),
            ("Bearer scope=read:data, error=none", Some("read:data")),
            (r#"Bearer error="invalid_token""#, None),
            ("Bearer scope=\"open", None),
        ] {
            assert_eq!(challenge(StatusCode::FORBIDDEN, wants, "").parameter("scope"), found);
        }
    }

    #[test]
    fn a_refusal_is_shown_in_the_servers_words() {
        for (wants, said, words) in [
            ("", "", "HTTP 401 Unauthorized"),
            ("", "Invalid API key", "HTTP 401 Unauthorized: Invalid API key"),
            (
                r#"bearer error="invalid_token", error_description="expired, see docs""#,
                "invalid_token",
                "HTTP 401 Unauthorized: invalid_token: expired, see docs",
            ),
            (
                r#"Basic realm="x""#,
                "Unauthorized",
                "HTTP 401 Unauthorized: it asks for a login of the kind `Basic`",
            ),
        ] {
            assert_eq!(challenge(StatusCode::UNAUTHORIZED, wants, said).to_string(), words);
        }
    }

    #[test]
    fn what_vouches_is_found_in_the_configuration() {
        let found = |url: &str, header: &'static str| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(header), HeaderValue::from_static("hidden"))]);
            configured(&Url::parse(url).unwrap(), &headers)
        };
        assert_eq!(found("http://a/mcp", "x-api-key"), ["the `X-Api-Key`"]);
        assert_eq!(found("http://me:pw@a/mcp", "authorization"), ["the `Authorization`"]);
        assert_eq!(found("http://me:pw@a/mcp", "x-org"), ["the name and password in `url`"]);
        assert_eq!(found("http://a/mcp?api_key=1", "x-org"), ["the key in `url`"]);
        assert!(found("http://a/mcp?page=1", "x-org").is_empty());
    }
}
