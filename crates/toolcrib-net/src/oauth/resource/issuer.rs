//! The keys of one authorization server, fetched by a task of their own.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use url::Url;

use super::{
    TokenRefusal,
    keys::{Algorithm, KeySet},
};
use crate::{
    http::HttpClients,
    oauth::{
        discovery::{self, quoted},
        error::OauthError,
        fetch::{Fetcher, shown},
    },
};

/// The pause after each fetch, whatever tokens name unknown keys meanwhile.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// How soon keys are fetched again without need, after success and after failure.
const FRESH: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(30);
/// How long keys count that cannot be fetched again.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);
/// How long a request waits for keys.
const WAIT: Duration = Duration::from_secs(20);

pub(super) struct KeySource {
    pub(super) name: Arc<str>,
    jwks: Option<String>,
    http: HttpClients,
    state: watch::Sender<KeyState>,
    wanted: Notify,
}

#[derive(Clone, Default)]
struct KeyState {
    keys: Option<Arc<KeySet>>,
    fetched: Option<Instant>,
    /// How often they were fetched, or should have been.
    attempts: u64,
}

impl KeySource {
    pub(super) fn new(issuer: &str, jwks: Option<&str>, http: &HttpClients) -> Self {
        Self {
            name: issuer.into(),
            jwks: jwks.map(str::to_owned),
            http: http.clone(),
            state: watch::Sender::default(),
            wanted: Notify::new(),
        }
    }

    /// The keys that there are now.
    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        self.state.borrow().keys.clone()
    }

    /// The keys, after they have been fetched again if none of them is for this algorithm and id.
    ///
    /// # Errors
    /// There are none at all.
    pub(super) async fn keys_with(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> Result<Arc<KeySet>, TokenRefusal> {
        let mut states = self.state.subscribe();
        let KeyState { keys, attempts, .. } = states.borrow_and_update().clone();
        // One of that name for another algorithm is known as well.
        let is_known = |keys: &Arc<KeySet>| {
            id.is_some_and(|id| keys.has(id)) || keys.find(algorithm, id).next().is_some()
        };
        if let Some(keys) = keys.filter(is_known) {
            return Ok(keys);
        }
        self.wanted.notify_one();
        let _ = timeout(WAIT, states.wait_for(|state| state.attempts > attempts)).await;
        self.current().ok_or(TokenRefusal::NoKeys)
    }

    /// Fetches keys: at once, then now and then, and when they are wanted.
    pub(super) async fn work(&self) {
        loop {
            let fetched = self.fetch().await;
            let again = if fetched.is_ok() { FRESH } else { RETRY };
            self.state.send_modify(|state| {
                state.attempts += 1;
                match fetched {
                    Ok(keys) => {
                        state.fetched = Some(Instant::now());
                        // The same ones stay the same: what they have verified counts on.
                        if state.keys.as_deref() != Some(&keys) {
                            state.keys = Some(Arc::new(keys));
                        }
                    }
                    Err(error) => {
                        tracing::warn!(issuer = &*self.name, %error, "no keys of an authorization server");
                        if state.fetched.is_some_and(|at| at.elapsed() > KEEP) {
                            state.keys = None;
                        }
                    }
                }
            });
            sleep(PAUSE).await;
            let _ = timeout(again, self.wanted.notified()).await;
        }
    }

    async fn fetch(&self) -> Result<KeySet, OauthError> {
        let no_address = || OauthError::unusable(format!("{} is no address", quoted(&self.name)));
        let issuer = Url::parse(&self.name).map_err(|_| no_address())?;
        let fetcher = Fetcher::new(&self.http, &issuer, self.jwks.as_deref()).await;
        let place = match &self.jwks {
            Some(jwks) => jwks.clone(),
            None => {
                let metadata = discovery::authorization_server(&fetcher, &self.name).await?;
                let missing = || OauthError::unusable("its metadata have no `jwks_uri`: set `jwks`");
                metadata.jwks_uri.ok_or_else(missing)?
            }
        };
        let url = Url::parse(&place)
            .map_err(|_| OauthError::unusable(format!("{} is no address of keys", quoted(&place))))?;
        let fetched = fetcher.get(&url).await?;
        if !fetched.status.is_success() {
            let what = format!("{} answers with HTTP {}", shown(&url), fetched.status.as_u16());
            return Err(OauthError::unreachable(what));
        }
        let keys = KeySet::parse(&fetched.body)
            .map_err(|_| OauthError::unusable(format!("{} is no set of keys", shown(&url))))?;
        match keys.is_empty() {
            true => Err(OauthError::unusable(format!("{} has no key that is of use here", shown(&url)))),
            false => Ok(keys),
        }
    }
}
