//! The proxies that the system has, by the usual variables and settings.

use std::sync::{Arc, OnceLock};

use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::ClientBuilder;
use url::Url;

/// Proxies, looked up when they are needed. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Proxies(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    matcher: OnceLock<Matcher>,
    /// The one for all addresses, where those of the system do not count.
    one: Option<reqwest::Proxy>,
}

impl Proxies {
    /// Sets the proxy `at` for all addresses.
    #[cfg(test)]
    pub(super) fn one(at: &str) -> Self {
        let matcher = OnceLock::from(Matcher::builder().all(at).build());
        Self(Arc::new(Known { matcher, one: Some(reqwest::Proxy::all(at).unwrap()) }))
    }

    /// Has a client use them. The client looks up those of the system by itself, in the same places.
    pub(super) fn set_for(&self, builder: ClientBuilder) -> ClientBuilder {
        match &self.0.one {
            Some(one) => builder.no_proxy().proxy(one.clone()),
            None => builder,
        }
    }

    /// Returns the proxy for `url`.
    pub(super) fn for_url(&self, url: &Url) -> Option<Uri> {
        let to = Uri::try_from(url.as_str()).ok()?;
        Some(self.0.matcher.get_or_init(Matcher::from_system).intercept(&to)?.uri().clone())
    }

    /// Says why the proxy for `url` cannot be used, if it cannot.
    pub(super) fn unusable_for(&self, url: &Url) -> Option<String> {
        let proxy = self.for_url(url)?;
        let scheme = proxy.scheme_str().unwrap_or_default();
        let unknown = !matches!(scheme, "http" | "https");
        unknown
            .then(|| format!("the proxy for it is a {scheme}:// one, where http:// and https:// are known"))
    }
}
