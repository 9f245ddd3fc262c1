//! Which requests wait for an answer: an answer that nobody asked for must not pass for one.

use std::collections::{HashSet, VecDeque};

use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
};

/// Requests that were given up and may still be answered, the last ones.
pub(super) const REMEMBERED: usize = 1024;

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Asked {
    open: HashSet<RequestId>,
    given_up: VecDeque<RequestId>,
}

/// What a message from the server is, as far as answers go.
#[derive(Debug, PartialEq)]
pub(super) enum Standing {
    /// No answer, or the one that was waited for.
    Expected,
    /// The answer to a request that was given up meanwhile.
    Late,
    /// A second answer, or one to a request that never was.
    Unasked,
}

impl Asked {
    /// Takes note of a message to the server.
    pub(super) fn sent(&mut self, message: &ClientJsonRpcMessage) {
        match message {
            JsonRpcMessage::Request(request) => {
                self.open.insert(request.id.clone());
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) = &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                    && self.open.remove(id)
                {
                    self.given_up.push_back(id.clone());
                    if self.given_up.len() > REMEMBERED {
                        self.given_up.pop_front();
                    }
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }

    /// What a message from the server is.
    pub(super) fn received(&mut self, message: &ServerJsonRpcMessage) -> Standing {
        let id = match message {
            JsonRpcMessage::Response(answer) => Some(&answer.id),
            JsonRpcMessage::Error(answer) => answer.id.as_ref(),
            JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
        };
        let Some(id) = id else { return Standing::Expected };
        if self.open.remove(id) {
            return Standing::Expected;
        }
        match self.given_up.iter().position(|given_up| given_up == id) {
            Some(at) => {
                self.given_up.remove(at);
                Standing::Late
            }
            None => Standing::Unasked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_json<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn each_request_has_one_answer() {
        let mut asked = Asked::default();
        let answer: ServerJsonRpcMessage = from_json(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#);
        assert_eq!(asked.received(&answer), Standing::Unasked);
        asked.sent(&from_json(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert_eq!(asked.received(&answer), Standing::Expected);
        assert_eq!(asked.received(&answer), Standing::Unasked);
        asked.sent(&from_json(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
        asked.sent(&from_json(cancel));
        assert_eq!(asked.received(&answer), Standing::Late);
        assert_eq!(asked.received(&answer), Standing::Unasked);
    }
}
