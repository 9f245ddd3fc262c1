//! A browser on this machine as the prompt: it is sent back to a small server on a loopback address, which lives for one
//! answer. Over ssh, where the browser is elsewhere, the address can be pasted instead.

use std::{io, net::SocketAddr, sync::Mutex, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use hyper::{Response, StatusCode, header::HeaderValue};
use tokio::sync::mpsc;

use super::{
    login::remote,
    prompt::{AuthorizationPrompt, AuthorizationRequest},
};
use crate::{
    cancel::{CancelGuard, CancellationToken},
    config::Config,
    error::{Error, Result},
    http::serve::{AnswerBody, HttpServer, answer},
};

/// The path that the browser is sent back to.
const PATH: &str = "/callback";
/// How long a user may take.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

const DONE: &str = "<!doctype html><meta charset=utf-8><title>toolcrib</title><p>toolcrib has the answer. You can close this page.\n";
const OTHER: &str = "<!doctype html><meta charset=utf-8><title>toolcrib</title><p>This is not the answer that toolcrib waits for.\n";

/// A listener on the loopback interface, and a way to show the address to the user.
pub struct LoopbackPrompt {
    listener: Mutex<Option<HttpServer>>,
    address: SocketAddr,
    show: Box<dyn Fn(&AuthorizationRequest) + Send + Sync>,
    /// Lines that a user types: one of them may be the address that the browser was sent back to.
    typed: tokio::sync::Mutex<Option<mpsc::Receiver<String>>>,
    patience: Duration,
}

impl LoopbackPrompt {
    /// Opens a listener for a login at the remote server `server`, on the port that the configuration names, else on that of
    /// the last login, or on any free one. `show` gets the address for the user's browser.
    ///
    /// # Errors
    /// The errors of [`login`](super::login); the port cannot be had.
    pub async fn bind(
        config: &Config,
        server: &str,
        show: impl Fn(&AuthorizationRequest) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (authorizer, _) = remote(config, server)?;
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let listener = match authorizer.config().redirect_port {
            Some(port) => HttpServer::bind(at(port)).await.map_err(|error| in_use(port, error))?,
            None => {
                let before = authorizer.load().ok().flatten().and_then(|login| login.client.registered);
                let before =
                    before.and_then(|registered| url::Url::parse(&registered.redirect_uri).ok()?.port());
                match HttpServer::bind(at(before.unwrap_or(0))).await {
                    Ok(listener) => listener,
                    // The client is registered anew then.
                    Err(_) => HttpServer::bind(at(0)).await.map_err(|error| in_use(0, error))?,
                }
            }
        };
        Ok(Self {
            address: listener.address(),
            listener: Mutex::new(Some(listener)),
            show: Box::new(show),
            typed: tokio::sync::Mutex::default(),
            patience: PATIENCE,
        })
    }

    /// Takes the address that the browser was sent back to from lines that the user types, as well.
    #[must_use]
    pub fn or_typed(mut self, lines: mpsc::Receiver<String>) -> Self {
        *self.typed.get_mut() = Some(lines);
        self
    }
}

fn in_use(port: u16, error: io::Error) -> Error {
    Error::io(format!("could not listen on 127.0.0.1:{port} for the answer of the browser"), error)
}

impl AuthorizationPrompt for LoopbackPrompt {
    fn redirect_uri(&self) -> String {
        format!("http://{}{PATH}", self.address)
    }

    fn authorize(&self, request: AuthorizationRequest) -> BoxFuture<'_, std::result::Result<String, String>> {
        async move {
            let listener = self.listener.lock().map_err(|error| error.to_string())?.take();
            let listener = listener.ok_or("an answer was awaited already")?;
            let end = CancellationToken::new();
            let _ended = CancelGuard(end.clone());
            let (tell, mut told) = mpsc::channel::<String>(1);
            let (base, asked) = (format!("http://{}", self.address), request.clone());
            let serving = listener.serve(end.clone(), move |came| {
                let address = format!("{base}{}", came.uri());
                let is_answer = came.uri().path() == PATH && asked.is_answered_by(&address);
                let tell = tell.clone();
                async move {
                    if !is_answer {
                        return page(StatusCode::NOT_FOUND, OTHER);
                    }
                    // A second answer to the same question changes nothing.
                    let _ = tell.try_send(address);
                    page(StatusCode::OK, DONE)
                }
            });
            (self.show)(&request);
            let mut typed = self.typed.lock().await;
            let answered = async {
                loop {
                    let line = async {
                        match typed.as_mut() {
                            Some(lines) => lines.recv().await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        address = told.recv() => return address.ok_or("nobody listens any more"),
                        line = line => match line {
                            Some(line) if request.is_answered_by(line.trim()) => return Ok(line.trim().to_owned()),
                            // Not an answer: the user may paste it once more.
                            Some(_) => {}
                            None => *typed = None,
                        },
                    }
                }
            };
            let waiting = async {
                let outcome = tokio::time::timeout(self.patience, answered).await;
                end.cancel();
                outcome
            };
            // The page is sent to its end.
            let ((), outcome) = tokio::join!(serving, waiting);
            match outcome {
                Ok(answer) => answer.map_err(str::to_owned),
                Err(_) => Err(format!("no answer came within {} minutes", self.patience.as_secs() / 60)),
            }
        }
        .boxed()
    }
}

fn page(status: StatusCode, text: &'static str) -> Response<AnswerBody> {
    let mut response = answer(status, "text/html; charset=utf-8", text);
    let headers = response.headers_mut();
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    response
}
