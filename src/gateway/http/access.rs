//! Who may ask: origins of pages, bearer tokens, and the limits of each token.

use std::{
    num::NonZeroUsize,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hyper::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE},
};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::answers::{Answer, INVALID_REQUEST, refusal};
use crate::{
    config::{GatewayConfig, GatewayToken, NamePattern, ToolSearch},
    gateway::{Endpoint, client::lock},
    http::serve::is_loopback_host,
    tool::ServerName,
};

/// Who may ask.
pub(super) struct Access {
    /// Of each token; one for everybody if there is no token.
    credentials: Vec<Arc<Credential>>,
    origins: Vec<String>,
}

/// What the owner of a token may use, and what is under way for them.
pub(super) struct Credential {
    /// Its place among all.
    pub(super) number: usize,
    name: String,
    /// Of the token. `None`: no token is needed.
    digest: Option<[u8; 32]>,
    tools: Vec<Arc<[NamePattern]>>,
    read_only: bool,
    search: ToolSearch,
    rate: Option<Mutex<RequestRate>>,
    in_flight: AtomicUsize,
    max_in_flight: Option<NonZeroUsize>,
}

/// A request under way, until this is dropped.
pub(super) struct InFlight(Arc<Credential>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Access {
    pub(super) fn new(config: &GatewayConfig) -> Self {
        let credential = |number, token: Option<&GatewayToken>| {
            Arc::new(Credential {
                number,
                name: token.map_or_else(|| "anybody".to_owned(), |token| token.name.clone()),
                digest: token.map(|token| Sha256::digest(&token.token).into()),
                tools: config
                    .tools
                    .iter()
                    .chain(token.and_then(|token| token.tools.as_ref()))
                    .map(|patterns| patterns.as_slice().into())
                    .collect(),
                read_only: config.read_only || token.is_some_and(|token| token.read_only),
                search: config.search,
                rate: config.requests_per_second.map(|rate| Mutex::new(RequestRate::new(rate))),
                in_flight: AtomicUsize::new(0),
                max_in_flight: config.max_in_flight,
            })
        };
        let tokens = config.tokens.iter().enumerate();
        let mut credentials: Vec<_> = tokens.map(|(number, token)| credential(number, Some(token))).collect();
        if credentials.is_empty() {
            credentials.push(credential(0, None));
        }
        Self { credentials, origins: config.origins.clone() }
    }

    /// The origin of the page that asks; `None`: no page asks.
    ///
    /// # Errors
    /// Pages of this origin may not ask.
    pub(super) fn origin<'h>(&self, headers: &'h HeaderMap) -> Result<Option<&'h HeaderValue>, Answer> {
        let Some(origin) = headers.get(ORIGIN) else { return Ok(None) };
        let known = origin.to_str().is_ok_and(|text| self.admits(&text.to_ascii_lowercase()));
        match known && headers.get_all(ORIGIN).iter().count() == 1 {
            true => Ok(Some(origin)),
            false => {
                let why = "pages of this origin may not use the gateway: see `origins` in [gateway]";
                Err(refusal(StatusCode::FORBIDDEN, INVALID_REQUEST, why))
            }
        }
    }

    fn admits(&self, origin: &str) -> bool {
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        let Ok(authority) = authority.parse::<hyper::http::uri::Authority>() else { return false };
        let host = authority.host();
        if self.origins.is_empty() {
            return matches!(scheme, "http" | "https") && is_loopback_host(host);
        }
        // An origin without a port stands for all ports.
        let without_port = format!("{scheme}://{host}");
        self.origins.iter().any(|known| *known == origin || *known == without_port)
    }

    /// Whose request it is.
    ///
    /// # Errors
    /// It has no token, or one that is not known.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Arc<Credential>, Answer> {
        if let Some(anybody) = self.credentials.first().filter(|first| first.digest.is_none()) {
            return Ok(anybody.clone());
        }
        let unauthorized = |challenge: &'static str, why: &str| {
            let mut answer = refusal(StatusCode::UNAUTHORIZED, INVALID_REQUEST, why);
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            answer
        };
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let token = match (given.next(), given.next()) {
            (Some(value), None) => bearer(value.as_bytes()),
            _ => None,
        };
        let Some(token) = token else {
            let why = "a token is needed: send it as `Authorization: Bearer TOKEN`";
            return Err(unauthorized("Bearer realm=\"toolcrib\"", why));
        };
        let digest: [u8; 32] = Sha256::digest(token).into();
        // All of them are compared, whichever it is.
        let mut found = None;
        for credential in &self.credentials {
            let same = credential.digest.as_ref().map_or(Choice::from(0), |known| known.ct_eq(&digest));
            if same.into() {
                found = Some(credential);
            }
        }
        found.cloned().ok_or_else(|| {
            unauthorized("Bearer realm=\"toolcrib\", error=\"invalid_token\"", "the token is not known")
        })
    }
}

/// The token in a header.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii()).filter(|token| !token.is_empty())
}

impl Credential {
    /// What its owner sees of the servers, or of one.
    pub(super) fn endpoint(&self, only: Option<ServerName>) -> Endpoint {
        Endpoint { only, tools: self.tools.clone(), read_only: self.read_only, search: self.search }
    }

    /// Takes a request in.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn begin(self: &Arc<Self>) -> Result<InFlight, Answer> {
        let too_many = |wait: Duration, why: &str| {
            tracing::debug!(token = self.name, "{why}");
            let mut answer = refusal(StatusCode::TOO_MANY_REQUESTS, -32000, why);
            answer.headers_mut().insert(RETRY_AFTER, wait.as_secs().max(1).into());
            answer
        };
        if let Some(rate) = &self.rate
            && let Err(wait) = lock(rate).take(Instant::now())
        {
            return Err(too_many(wait, "too many requests a second"));
        }
        let before = self.in_flight.fetch_add(1, Relaxed);
        let taken = InFlight(self.clone());
        match self.max_in_flight {
            Some(most) if before >= most.get() => {
                Err(too_many(Duration::from_secs(1), "too many requests are under way"))
            }
            _ => Ok(taken),
        }
    }
}

/// So many requests a second, and as many at once.
struct RequestRate {
    per_second: f64,
    filled: f64,
    at: Instant,
}

impl RequestRate {
    fn new(per_second: NonZeroUsize) -> Self {
        let per_second = per_second.get() as f64;
        Self { per_second, filled: per_second, at: Instant::now() }
    }

    /// Takes one, or says how long there is none.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.filled = (self.filled + passed * self.per_second).min(self.per_second);
        self.at = now;
        if self.filled < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - self.filled) / self.per_second));
        }
        self.filled -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        let own = Access::new(&GatewayConfig::default());
        let origins = vec!["https://a.example".to_owned(), "http://localhost:1".to_owned()];
        let config = GatewayConfig { origins, ..GatewayConfig::default() };
        let some = Access::new(&config);
        let admitted = |access: &Access, origin: &str| access.origin(&headers("origin", origin)).is_ok();
        for (origin, by_default, configured) in [
            ("http://localhost:5173", true, false),
            ("http://LOCALHOST:1", true, true),
            ("http://127.0.0.1", true, false),
            ("http://[::1]:9", true, false),
            ("https://a.example", false, true),
            ("https://a.example:8443", false, true),
            ("http://a.example", false, false),
            ("https://a.example.evil.example", false, false),
            ("http://localhost.evil.example", false, false),
            ("null", false, false),
        ] {
            assert_eq!(admitted(&own, origin), by_default, "{origin}");
            assert_eq!(admitted(&some, origin), configured, "{origin}");
        }
        assert!(own.origin(&HeaderMap::new()).unwrap().is_none(), "no page asks");
    }

    #[test]
    fn tokens_say_who_asks() {
        let tokens = vec![GatewayToken::new("a", "first-token"), GatewayToken::new("b", "second-token")];
        let config = GatewayConfig { tokens, ..GatewayConfig::default() };
        let access = Access::new(&config);
        let caller = |value: &str| access.caller(&headers("authorization", value)).map(|who| who.number).ok();
        assert_eq!(caller("Bearer first-token"), Some(0));
        assert_eq!(caller("bearer  second-token"), Some(1));
        for wrong in
            ["Bearer first-toke", "Bearer first-token2", "Basic first-token", "Bearer ", "first-token"]
        {
            assert_eq!(caller(wrong), None, "{wrong}");
        }
        let none = access.caller(&HeaderMap::new()).err().unwrap();
        assert_eq!(none.status(), StatusCode::UNAUTHORIZED);
        assert!(none.headers().contains_key(WWW_AUTHENTICATE));
        let anybody = Access::new(&GatewayConfig::default());
        assert_eq!(anybody.caller(&HeaderMap::new()).map(|who| who.number).ok(), Some(0));
    }

    #[test]
    fn requests_over_the_rate_wait_their_time() {
        let mut rate = RequestRate::new(NonZeroUsize::new(2).unwrap());
        let now = rate.at;
        assert!(rate.take(now).is_ok() && rate.take(now).is_ok());
        assert_eq!(rate.take(now).unwrap_err(), Duration::from_millis(500));
        assert!(rate.take(now + Duration::from_millis(500)).is_ok());
        assert!(rate.take(now + Duration::from_millis(600)).is_err());
        let later = now + Duration::from_secs(60);
        assert!(rate.take(later).is_ok() && rate.take(later).is_ok() && rate.take(later).is_err());
    }
}
