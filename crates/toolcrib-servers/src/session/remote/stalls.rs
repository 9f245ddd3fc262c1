//! The look for servers that stall on kept connections.
//!
//! A server without TCP_NODELAY that writes an answer in parts holds the second part back until the first one is
//! acknowledged, which on a kept connection takes 40 ms (delayed acknowledgement). On a new one it does not. Nothing on
//! our side of the connection can be set against it but not to keep it.

use std::time::{Duration, Instant};

use super::http::RemoteHttp;
use crate::{
    session::{SessionEvent, SessionObserver, connect::handshake::Era, rpc::client::RpcClient},
    tool::ServerName,
};

/// Questions in a row that a connection is judged by. Those before the last ones may be answered at once: the system
/// acknowledges the first parts on each connection without delay.
const QUESTIONS: usize = 12;
const JUDGED: usize = 4;
/// A server that stalls takes so much longer, at least. The delay is 40 ms on Linux.
const STALL: Duration = Duration::from_millis(25);
/// How long a connection may take to return to the pool after the end of an answer.
const RETURN_PAUSE: Duration = Duration::from_millis(2);
/// Limit of one question.
const LIMIT: Duration = Duration::from_secs(5);

/// Looks whether the server answers later on kept connections than on new ones. If it does, it has a new one for each
/// request from then on, and this is reported.
pub(super) async fn look(
    http: RemoteHttp,
    client: RpcClient,
    era: Era,
    server: ServerName,
    tell: SessionObserver,
) {
    let slow = async || quickest(&http, &client, era).await.filter(|kept| *kept >= STALL);
    let Some(first) = slow().await else { return };
    // It may be far away, or slow in itself.
    http.set_stalls(true);
    let new = quickest(&http, &client, era).await;
    http.set_stalls(false);
    let late = |kept: &Duration| new.is_some_and(|new| *kept >= new + STALL);
    if !late(&first) {
        return;
    }
    // Or the machine was busy for a moment: what is found has to be found twice.
    let Some(second) = slow().await.filter(late) else { return };
    http.set_stalls(true);
    let text = format!(
        "answers {} ms late on connections that are kept (no TCP_NODELAY, delayed acknowledgements): \
         each request has a new one",
        first.min(second).saturating_sub(new.unwrap_or_default()).as_millis()
    );
    tracing::warn!(%server, "{text}");
    tell(&server, SessionEvent::Warning { text });
}

/// The quickest of the last answers to some questions; `None` if one has none.
async fn quickest(http: &RemoteHttp, client: &RpcClient, era: Era) -> Option<Duration> {
    let mut times = Vec::with_capacity(QUESTIONS);
    for _ in 0..QUESTIONS {
        wait_idle(http).await;
        let began = Instant::now();
        if !client.answers(era, LIMIT).await {
            return None;
        }
        times.push(began.elapsed());
    }
    times.into_iter().skip(QUESTIONS - JUDGED).min()
}

/// Waits until earlier answers were read to their ends and their connections are idle: a question that comes before that
/// has a new connection, which says nothing about kept ones.
async fn wait_idle(http: &RemoteHttp) {
    let mut rests = std::mem::take(&mut *http.rests());
    while rests.join_next().await.is_some() {}
    tokio::time::sleep(RETURN_PAUSE).await;
}
