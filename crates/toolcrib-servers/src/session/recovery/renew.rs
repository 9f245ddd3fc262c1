//! Opens the session with a remote server anew that does not know it any more. Calls that the server has taken before go on
//! at the old one.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;

use crate::{
    error::Result,
    session::{RestartReason, Session, call::ConnectionHandle, recovery::slot::State, rpc::client::RpcOwner},
};

/// How long a server may take to say whether it knows a session.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);
/// Sessions that are kept for the calls on them.
const MAX_EARLIER: usize = 16;

/// The sessions of a server that were replaced while it went on.
#[derive(Default)]
pub(in crate::session) struct Renewals {
    /// A new session was refused as the one before it: the refusal may be about something else.
    doubtful: AtomicBool,
    /// Their calls may still be answered. Std mutex: held to add one, or to take all.
    earlier: Mutex<Vec<RpcOwner>>,
}

impl Renewals {
    /// A call that was sent again in a new session was answered.
    pub(in crate::session) fn helped(&self) {
        self.doubtful.store(false, Relaxed);
    }

    /// A call that was sent again in a new session was refused as before.
    pub(in crate::session) fn failed(&self) {
        self.doubtful.store(true, Relaxed);
    }

    /// Keeps a session for the calls that are under way on it.
    pub(super) fn keep(&self, link: RpcOwner) {
        let mut earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner);
        earlier.retain(RpcOwner::is_busy);
        if link.is_busy() && earlier.len() < MAX_EARLIER {
            earlier.push(link);
        }
    }

    /// Ends all of them.
    pub(in crate::session) fn end(&self) {
        let earlier = std::mem::take(&mut *self.earlier.lock().unwrap_or_else(PoisonError::into_inner));
        // Outside of the lock.
        drop(earlier);
    }
}

impl Session {
    /// Opens the session anew that `connection` belongs to, for the reason that the server gave. Many callers, one
    /// session. `false`: the server knows the session, so that a new one would not help.
    ///
    /// # Errors
    /// There is no new one.
    ///
    /// Boxed: it is rare and large, and every call would carry it along.
    pub(in crate::session) fn renew_session<'a>(
        &'a self,
        connection: &'a ConnectionHandle,
        why: &'a str,
    ) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let doubtful = self.renewals.doubtful.load(Relaxed);
            let present = match &*self.slot.state() {
                State::Ready { generation, connection: present } if *generation == connection.generation => {
                    Some(present.era)
                }
                _ => None,
            };
            if let Some(era) = present.filter(|_| doubtful)
                && connection.client.knows_session(era, QUESTION_LIMIT).await
            {
                return Ok(false);
            }
            let what = format!("has ended the session: {why}");
            let reason = RestartReason { what, asked: false, is_renewal: true };
            self.restart(connection.generation, Some(reason)).await.map(|()| true)
        })
    }

    /// Whether sessions in a row were refused.
    pub(super) fn is_renewal_doubtful(&self) -> bool {
        self.renewals.doubtful.load(Relaxed)
    }
}
