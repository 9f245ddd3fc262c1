//! Limits the requests to one site: one page at a time, with a pause between two, and only pages that its `robots.txt`
//! allows.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::OwnedMutexGuard,
    time::{Instant, sleep_until},
};
use url::Url;

use super::robots::Rules;

/// Sites that are remembered.
const MAX_SITES: usize = 1000;
/// Time for which the rules of a site are good (RFC 9309, 2.4).
const RULES_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest pause, even if a site asks for more: the call would time out before.
const MAX_DELAY: Duration = Duration::from_secs(20);

/// Every site that was visited lately.
#[derive(Default)]
pub(super) struct Sites(Mutex<HashMap<String, Arc<tokio::sync::Mutex<Site>>>>);

/// State of one site, which is a scheme, a host and a port.
#[derive(Default)]
pub(super) struct Site {
    rules: Option<(Instant, Arc<Rules>)>,
    /// When it was asked last.
    last: Option<Instant>,
}

/// The exclusive right to send a request to a site.
pub(super) struct Turn(OwnedMutexGuard<Site>);

impl Sites {
    /// Waits until no other request to the site of `url` is running.
    pub(super) async fn turn(&self, url: &Url) -> Turn {
        let site = {
            let mut sites = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if sites.len() >= MAX_SITES {
                // Sites with a running request stay; others are treated as new the next time.
                sites.retain(|_, site| Arc::strong_count(site) > 1);
            }
            Arc::clone(sites.entry(url.origin().ascii_serialization()).or_default())
        };
        Turn(site.lock_owned().await)
    }
}

impl Turn {
    /// The rules of the site, if they are known and not old.
    pub(super) fn rules(&self) -> Option<Arc<Rules>> {
        let (read, rules) = self.0.rules.as_ref()?;
        (read.elapsed() < RULES_LIFE).then(|| Arc::clone(rules))
    }

    pub(super) fn set_rules(&mut self, rules: Rules) -> Arc<Rules> {
        let rules = Arc::new(rules);
        self.0.rules = Some((Instant::now(), Arc::clone(&rules)));
        rules
    }

    /// Waits until the site has had a pause of `delay`, or of its own wish if that is longer.
    pub(super) async fn pause(&mut self, delay: Duration) {
        let wish = self.rules().and_then(|rules| rules.delay).unwrap_or_default().min(MAX_DELAY);
        if let Some(last) = self.0.last {
            sleep_until(last + delay.max(wish)).await;
        }
    }

    /// Notes that the site is asked now: at the beginning, in case that the end is never seen, and at the end.
    pub(super) fn asked(&mut self) {
        self.0.last = Some(Instant::now());
    }
}
