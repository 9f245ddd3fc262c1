//! The way to a server: straight, or through the proxy that the system has for it.

use std::{future::poll_fn, time::Duration};

use hyper::{Uri, header::HeaderValue};
use hyper_rustls::HttpsConnector;
use hyper_util::client::{
    legacy::connect::{HttpConnector, proxy::Tunnel},
    proxy::matcher::Matcher,
};
use rustls::ClientConfig;
use tower_service::Service;

use super::BoxError;

/// Connections to `to`.
#[derive(Debug)]
pub(crate) struct Road {
    pub(super) dial: Dial,
    to: Uri,
    /// A proxy that requests are handed to, with what it wants to know of the sender.
    proxy: Option<Proxy>,
}

#[derive(Debug)]
pub(super) enum Dial {
    Plain(HttpConnector),
    Encrypted(HttpsConnector<HttpConnector>),
    /// Encrypted through a proxy that passes bytes on.
    Tunnel(Box<HttpsConnector<Tunnel<HttpsConnector<HttpConnector>>>>),
}

#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) auth: Option<HeaderValue>,
}

impl Road {
    /// The way to the server of `to`. Without `proxies` it is this machine.
    pub(crate) fn new(
        to: &Uri,
        proxies: Option<&Matcher>,
        tls: ClientConfig,
        connect_timeout: Duration,
    ) -> Result<Self, String> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        // For each of the addresses that a name may have.
        http.set_connect_timeout(Some(connect_timeout));
        if proxies.is_some() {
            // This machine does not fall silent. To listen for it takes five system calls for each connection.
            listen_for_silence(&mut http);
        }
        let straight = |to: &Uri, proxy| {
            let dial = match to.scheme_str() {
                Some("http") => Dial::Plain(http.clone()),
                _ => Dial::Encrypted(HttpsConnector::from((http.clone(), tls.clone()))),
            };
            Self { dial, to: to.clone(), proxy }
        };
        let Some(proxy) = proxies.and_then(|proxies| proxies.intercept(to)) else {
            return Ok(straight(to, None));
        };
        let (scheme, auth) = (proxy.uri().scheme_str(), proxy.basic_auth().cloned());
        if !matches!(scheme, Some("http" | "https")) {
            let scheme = scheme.unwrap_or_default();
            return Err(format!(
                "the proxy for it is a {scheme}:// one, where http:// and https:// are known"
            ));
        }
        if to.scheme_str() == Some("http") {
            return Ok(straight(proxy.uri(), Some(Proxy { auth })));
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), HttpsConnector::from((http, tls.clone())));
        if let Some(auth) = auth {
            tunnel = tunnel.with_auth(auth);
        }
        let dial = Dial::Tunnel(Box::new(HttpsConnector::from((tunnel, tls))));
        Ok(Self { dial, to: to.clone(), proxy: None })
    }

    pub(super) fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_ref()
    }

    /// A new connection by `connector`, which is that of `dial`.
    pub(super) async fn open<C>(&self, connector: &C) -> Result<C::Response, BoxError>
    where
        C: Service<Uri, Error: Into<BoxError>> + Clone,
    {
        let mut connector = connector.clone();
        poll_fn(|context| connector.poll_ready(context)).await.map_err(Into::into)?;
        connector.call(self.to.clone()).await.map_err(Into::into)
    }
}

/// As reqwest has it.
fn listen_for_silence(http: &mut HttpConnector) {
    let every = Some(Duration::from_secs(15));
    http.set_keepalive(every);
    http.set_keepalive_interval(every);
    http.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(Duration::from_secs(30)));
}
