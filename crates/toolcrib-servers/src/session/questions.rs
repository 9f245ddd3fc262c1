//! Questions that a session asks on its own: the pages of the tool list, and whether a server still answers.

use std::time::Duration;

use serde_json::{Map, Value};

use super::{
    connect::{
        failure::{BadAnswer, Cause},
        handshake::Era,
        tool_page::ToolPage,
    },
    result::{
        reply::{NoReply, Refusal},
        words,
    },
    rpc::{client::RpcClient, decode::why_unusable, requests::RpcAnswer},
};
use crate::error::ErrorCode;

impl RpcClient {
    /// One page of the tool list, whose first entry is number `first` of the whole list.
    pub(super) async fn page(
        &self,
        cursor: Option<String>,
        first: usize,
        limit: Duration,
    ) -> Result<ToolPage, Cause> {
        let params = cursor.map(|cursor| ("cursor".to_owned(), Value::String(cursor))).into_iter().collect();
        let why = match self.ask("tools/list", &params, limit).await {
            Ok(RpcAnswer::Result(result)) => match ToolPage::read(&result, first) {
                Ok(mut page) => {
                    if let Some(remote) = self.remote() {
                        remote.drop_unusable(&mut page.tools);
                    }
                    return Ok(page);
                }
                Err(why) => why,
            },
            Ok(RpcAnswer::Plain(_)) => OTHER_ANSWER.to_owned(),
            Ok(RpcAnswer::Refused(error)) => refusal(&error),
            Err(NoReply::NotWritten(error)) if self.remote().is_some() => {
                return Err(Cause::Unreachable(error.reason, None));
            }
            Err(NoReply::NotSent | NoReply::NotWritten(_) | NoReply::Ended { .. }) => {
                return Err(Cause::Closed);
            }
            Err(NoReply::Timeout(_)) => return Err(Cause::Timeout),
            Err(NoReply::Unauthorized(missing)) => return Err(Cause::Unauthorized(missing)),
            Err(NoReply::Refused(Refusal { why, .. }) | NoReply::Unknown(why)) => {
                let why = format!("`tools/list`: {why}");
                let what = "does not give its tools";
                return Err(Cause::BadAnswer(BadAnswer {
                    code: ErrorCode::ProtocolMismatch,
                    what,
                    why,
                    help: None,
                }));
            }
            Err(NoReply::SessionEnded(why)) => format!("was refused: {why}"),
        };
        Err(Cause::Protocol(format!("`tools/list` {why}")))
    }

    /// Whether the server answers in its session within `limit`, rather than that it has ended.
    pub(super) async fn knows_session(&self, era: Era, limit: Duration) -> bool {
        let answer = self.ask(question(era), &Map::new(), limit).await;
        matches!(answer, Ok(_) | Err(NoReply::Refused(_) | NoReply::Unauthorized(_) | NoReply::Unknown(_)))
    }

    /// Whether there is an answer of any kind within `limit` to the [question](question) of `era`. A server that
    /// cannot be asked is none of those who do not answer: its end is noticed as such.
    pub(super) async fn answers(&self, era: Era, limit: Duration) -> bool {
        match self.ask(question(era), &Map::new(), limit).await.map(drop) {
            Err(NoReply::Timeout(_)) => false,
            Err(NoReply::Ended { .. } | NoReply::NotWritten(_)) => {
                // The death of a process is noticed meanwhile, and reported with its real cause. A remote server that
                // cannot be reached has no other way to tell.
                tokio::time::sleep(limit).await;
                false
            }
            _ => true,
        }
    }
}

/// Method that checks whether a server still answers. The 2026-07-28 revision has no `ping`; every server of it answers
/// `server/discover`.
pub(super) fn question(era: Era) -> &'static str {
    match era {
        Era::Legacy => "ping",
        Era::Modern => "server/discover",
    }
}

/// Continues the sentence "`tools/list` ...".
const OTHER_ANSWER: &str = "was answered with something else";

/// Continues the sentence "`tools/list` ...".
fn refusal(error: &rmcp::model::ErrorData) -> String {
    why_unusable(error).map_or_else(
        || format!("was refused: {} ({})", words::brief(&error.message), error.code.0),
        |why| format!("gave an answer that cannot be used: {why}"),
    )
}
