//! The way to a server: straight, or through the proxy that the system has for it.

use std::{future::poll_fn, time::Duration};

use futures_util::future::BoxFuture;
use hyper::{
    Uri,
    header::HeaderValue,
    http::uri::Authority,
    rt::{Read, Write},
};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::{
        legacy::connect::{HttpConnector, proxy::Tunnel},
        proxy::matcher::Matcher,
    },
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower_service::Service;

use super::BoxError;
use crate::{
    config::HttpVersion,
    http::{protocols, tls},
};

/// Connections to `to`.
#[derive(Debug)]
pub(crate) struct Road {
    pub(super) dial: Dial,
    to: Uri,
    /// A proxy that requests are handed to, with what it wants to know of the sender.
    pub(super) proxy: Option<Proxy>,
}

#[derive(Debug)]
pub(super) enum Dial {
    /// This machine, unencrypted: its addresses need no race, and it does not fall silent.
    Near(Authority),
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
        tls: &tls::Shared,
        (connect_timeout, version): (Duration, HttpVersion),
    ) -> Result<Self, String> {
        if let (None, Some("http"), Some(at)) = (proxies, to.scheme_str(), to.authority()) {
            return Ok(Self { dial: Dial::Near(at.clone()), to: to.clone(), proxy: None });
        }
        let http = connector(connect_timeout);
        let tls = || tls.offering(protocols(version));
        let straight = |to: &Uri, proxy| {
            let dial = match to.scheme_str() {
                Some("http") => Dial::Plain(http.clone()),
                _ => Dial::Encrypted(HttpsConnector::from((http.clone(), tls()))),
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
        let mut tunnel = Tunnel::new(proxy.uri().clone(), HttpsConnector::from((http, tls())));
        if let Some(auth) = auth {
            tunnel = tunnel.with_auth(auth);
        }
        let dial = Dial::Tunnel(Box::new(HttpsConnector::from((tunnel, tls()))));
        Ok(Self { dial, to: to.clone(), proxy: None })
    }

    /// A new connection by `connector`, which is that of `dial`. Boxed with all that making it takes: encryption needs
    /// a lot of room, in each place that could hold it.
    pub(super) fn open<C>(&self, connector: &C) -> BoxFuture<'static, Result<Box<dyn Io>, BoxError>>
    where
        C: Service<Uri, Response: Io, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    {
        let (mut connector, to) = (connector.clone(), self.to.clone());
        Box::pin(async move {
            poll_fn(|context| connector.poll_ready(context)).await.map_err(Into::into)?;
            let io = connector.call(to).await.map_err(Into::into)?;
            Ok(Box::new(io) as Box<dyn Io>)
        })
    }
}

/// Bytes that come and go.
pub(super) trait Io: Read + Write + Send + Unpin + 'static {}

impl<T: Read + Write + Send + Unpin + 'static> Io for T {}

/// Connections to anywhere, with limits as reqwest has them for a side that falls silent.
fn connector(connect_timeout: Duration) -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    // For each of the addresses that a name may have.
    http.set_connect_timeout(Some(connect_timeout));
    let every = Some(Duration::from_secs(15));
    http.set_keepalive(every);
    http.set_keepalive_interval(every);
    http.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    http.set_tcp_user_timeout(Some(Duration::from_secs(30)));
    http
}

/// A connection to this machine.
pub(super) async fn near(at: &Authority) -> Result<TokioIo<TcpStream>, BoxError> {
    let socket =
        TcpStream::connect((at.host().trim_matches(['[', ']']), at.port_u16().unwrap_or(80))).await?;
    socket.set_nodelay(true)?;
    Ok(TokioIo::new(socket))
}
