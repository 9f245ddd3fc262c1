//! The stream of what belongs to no request. A server need not have one: whatever it answers there, the session goes on,
//! and it is not asked without end.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use hyper::{StatusCode, header::HeaderValue};
use tokio::time::{Instant, timeout};

use super::{
    error::{RemoteFailure, StatusAnswer},
    events::EventStream,
    exchange::{Read, Resumption},
    http::{EVENTS, HttpFailure, LAST_EVENT_ID, content_type},
    wire::RemoteWire,
};
use crate::session::rpc::receive::Origin;

/// How long the head of a stream may take: some servers send it with the first event.
const HEAD_LIMIT: Duration = Duration::from_secs(300);
/// The least pause before the stream is asked for again. It doubles, up to a limit, while streams are short.
const LEAST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// A stream that stood for so long has not failed.
const STOOD: Duration = Duration::from_secs(10);

impl RemoteWire {
    /// The stream of what belongs to no request, or the rest of any stream.
    pub(super) async fn events_after(&self, last_id: Option<&str>) -> Result<EventStream, RemoteFailure> {
        let mut headers = self.session_headers();
        if let Some(id) = last_id {
            let value = HeaderValue::try_from(id).map_err(|_| {
                RemoteFailure::Broken("the id of its last event cannot be sent back".to_owned())
            })?;
            headers.insert(LAST_EVENT_ID, value);
        }
        let mut answer = self.http.get_beside(headers).await?;
        let kind = content_type(&answer);
        if answer.status.is_success() && kind.as_deref() == Some(EVENTS) {
            return Ok(EventStream::new(answer));
        }
        let (mut refused, _) = StatusAnswer::read(&mut answer, 1).await;
        if refused.status.is_success() {
            refused.said = format!("`{}` in place of events", kind.unwrap_or_default());
        }
        Err(RemoteFailure::Status(refused))
    }

    /// Listens to what belongs to no request, for as long as the server has a stream for that.
    pub(super) async fn listen(self: Arc<Self>) {
        let set_listening = |on| self.listening.store(on, Relaxed);
        let mut resumption = Resumption::default();
        // Streams in a row that did not stand.
        let mut short = 0;
        set_listening(true);
        let last = loop {
            let began = Instant::now();
            let stream = timeout(HEAD_LIMIT, self.events_after(resumption.last_id.as_deref())).await;
            let _ = self.listened.1.set(());
            let failure = match stream {
                Ok(Ok(mut stream)) => {
                    let Ok(Read::Ended) = self.read(&mut stream, Origin::default(), &mut resumption).await
                    else {
                        break None;
                    };
                    None
                }
                Ok(Err(failure)) if !self.is_passing(&failure) => break Some(failure),
                Ok(Err(failure)) => Some(failure),
                Err(_) => None,
            };
            short += 1;
            if began.elapsed() >= STOOD {
                (short, resumption.fruitless) = (0, 0);
            }
            let least = LEAST_PAUSE.saturating_mul(1 << short.min(10)).min(MAX_PAUSE);
            // A pause that the server names is its own word, unless that is none.
            let least = resumption.retry.filter(|retry| *retry >= LEAST_PAUSE).unwrap_or(least);
            if !resumption.pause(least).await {
                let closed = || RemoteFailure::Broken("it closes it at once".to_owned());
                break Some(failure.unwrap_or_else(closed));
            }
        };
        set_listening(false);
        if let Some(failure) = last.filter(|failure| !is_no_offer(failure)) {
            let why = failure.words(self.http.url());
            self.warn_once(&format!(
                "gives no stream of notices ({why}): changes of its tools may go unnoticed; calls are not concerned"
            ));
        }
    }

    /// Whether it may be otherwise a moment later.
    pub(super) fn is_passing(&self, failure: &RemoteFailure) -> bool {
        match failure {
            RemoteFailure::Http(HttpFailure::Unanswered(_)) => true,
            // Another request may have got a token meanwhile.
            RemoteFailure::Http(HttpFailure::Challenged(_) | HttpFailure::NotAuthorized(..)) => {
                self.http.has_login()
            }
            RemoteFailure::Status(StatusAnswer { status, .. }) => {
                *status == StatusCode::TOO_MANY_REQUESTS
                    || (status.is_server_error() && *status != StatusCode::NOT_IMPLEMENTED)
            }
            _ => false,
        }
    }
}

/// Whether the server just has no such stream.
fn is_no_offer(failure: &RemoteFailure) -> bool {
    matches!(failure, RemoteFailure::Status(answer) if [404, 405, 501].contains(&answer.status.as_u16()))
}
