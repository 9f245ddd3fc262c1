//! One `subscriptions/listen` of ours at a server of the new era: open for all clients that watch resources there.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use rmcp::model::{ErrorCode, ErrorData};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::exchange::refusal;
use crate::{
    json_rpc::RawObject,
    session::{ClientAnswer, OutgoingRequest, RequestParams, Session},
};

/// How long the request may stay open. It is renewed then.
const LISTEN_LIMIT: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause before a request that ended is sent again.
const RESUBSCRIBE: Duration = Duration::from_secs(1);

/// The open request. Dropped, it is cancelled.
pub(super) struct UpstreamListener {
    /// The number by which the server's acknowledgement is known as one of this request.
    pub(super) number: u64,
    uris: BTreeSet<String>,
    standing: watch::Sender<Standing>,
    _open: AbortOnDropHandle<()>,
}

/// The server's word on the request.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    /// The server has said nothing yet.
    Asked,
    /// It tells of changes of these.
    Acknowledged(HashSet<String>),
    Refused(ErrorData),
}

impl UpstreamListener {
    /// Asks to be told of changes of `uris`.
    pub(super) fn open(session: &Arc<Session>, number: u64, uris: BTreeSet<String>) -> Self {
        let standing = watch::Sender::new(Standing::Asked);
        let task = listen(session.clone(), number, uris.clone(), standing.clone());
        #[expect(clippy::disallowed_methods, reason = "the listener has the handle that aborts it")]
        let open = AbortOnDropHandle::new(tokio::spawn(task));
        Self { number, uris, standing, _open: open }
    }

    /// Whether the request is for all of `uris`, and was not refused.
    pub(super) fn is_for(&self, uris: &BTreeSet<String>) -> bool {
        self.uris.is_superset(uris) && !matches!(*self.standing.borrow(), Standing::Refused(_))
    }

    pub(super) fn is_acknowledged(&self) -> bool {
        matches!(*self.standing.borrow(), Standing::Acknowledged(_))
    }

    /// The server will tell of changes of these.
    pub(super) fn acknowledge(&self, uris: HashSet<String>) {
        self.standing.send_replace(Standing::Acknowledged(uris));
    }

    /// Hears what the server says to the request.
    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }
}

/// Sends a request of the gateway itself to a server, and returns the answer.
pub(super) async fn send(
    session: &Session,
    method: &str,
    params: &RawObject,
    limit: Option<Duration>,
    number: u64,
) -> ClientAnswer {
    let meta = RawObject::default();
    let request = OutgoingRequest::new(method, RequestParams::Written(params, &meta));
    let request = OutgoingRequest { limit, exchange: Some(number), ..request };
    session
        .forward(request)
        .await
        .map_or_else(|error| Err(refusal(&error, false)), |forwarded| forwarded.answer)
}

/// Keeps the request open.
async fn listen(
    session: Arc<Session>,
    number: u64,
    uris: BTreeSet<String>,
    standing: watch::Sender<Standing>,
) {
    let mut params = RawObject::default();
    params.write("notifications", &json!({"resourceSubscriptions": uris}));
    let mut is_told = false;
    loop {
        let ended = send(&session, "subscriptions/listen", &params, Some(LISTEN_LIMIT), number).await;
        if let Err(error) = ended {
            let is_final = error.code != ErrorCode::INTERNAL_ERROR;
            // It is asked again and again; that it does not do it is told once.
            if !std::mem::replace(&mut is_told, true) {
                let (server, error) = (session.name(), &error.message);
                tracing::warn!(%server, %error, "does not tell of changes of resources that clients watch");
            }
            standing.send_if_modified(|standing| {
                let is_open = matches!(standing, Standing::Asked) || is_final;
                if is_open {
                    *standing = Standing::Refused(error);
                }
                is_open
            });
            if is_final {
                return;
            }
        }
        tokio::time::sleep(RESUBSCRIBE).await;
    }
}
