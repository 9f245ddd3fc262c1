//! The classes of failures, and whether each is retried: the one table of the retry rules.

use serde::{Deserialize, Serialize};

use crate::{error::ErrorCode, retry::Retry};

/// The kind of failure that a model request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LlmErrorClass {
    /// No credit, or a spending limit is reached. Looks like a rate limit; waiting does not help.
    Billing,
    /// A rate limit.
    Throttled,
    /// The server is overloaded, starting, or behind a gateway that cannot reach it.
    Overloaded,
    /// The server failed.
    Server,
    /// The server asks to try again.
    Transient,
    /// The conversation is too long for the model.
    Context,
    /// The server refuses the request or the key.
    Permanent,
    /// The server cannot be reached, or the connection broke.
    Down,
    /// No answer in time.
    Timeout,
    /// The address is wrong: no such host, no TLS there, a redirect.
    Config,
    /// This machine is out of something (file descriptors).
    Local,
    /// The connection was closed before any answer, most likely while idle.
    Stale,
    /// The answer ended half way.
    Cut,
    /// The answer is not one of a chat API.
    BadAnswer,
    /// The answer ran into `max_tokens`.
    Truncated,
    /// The answer says the same again and again.
    Looping,
    /// The scripted model has no answer.
    Script,
    /// The caller's deadline passed.
    Deadline,
    /// The client was shut down.
    Closed,
    /// The caller cancelled it, or another client of a race had answered first.
    Cancelled,
}

impl LlmErrorClass {
    /// The class of an HTTP status alone. The body can give a more exact one (billing, context).
    #[doc(hidden)]
    pub fn of_status(status: u16) -> Self {
        match status {
            402 => Self::Billing,
            413 => Self::Context,
            429 => Self::Throttled,
            408 | 409 | 425 => Self::Transient,
            502 | 503 | 504 | 529 => Self::Overloaded,
            501 | 505 => Self::Permanent,
            500.. => Self::Server,
            300..400 => Self::Config,
            _ => Self::Permanent,
        }
    }

    /// Whether such a failure is retried. `advice` is the server's header `x-should-retry`.
    #[doc(hidden)]
    pub fn retry(self, advice: Option<bool>) -> Retry {
        match (self, advice) {
            (Self::Billing, _) | (_, Some(false)) => return Retry::Never,
            (_, Some(true)) => return Retry::Yes,
            (_, None) => {}
        }
        match self {
            Self::Billing
            | Self::Context
            | Self::Permanent
            | Self::Config
            | Self::Script
            | Self::Deadline
            | Self::Closed
            | Self::Cancelled => Retry::Never,
            Self::BadAnswer => Retry::AtMost { class: self.name(), retries: 2 },
            Self::Stale => Retry::AtOnce,
            Self::Truncated | Self::Looping => Retry::Again,
            Self::Throttled
            | Self::Overloaded
            | Self::Server
            | Self::Transient
            | Self::Down
            | Self::Timeout
            | Self::Local
            | Self::Cut => Retry::Yes,
        }
    }

    /// The code of an error that ends with this class.
    #[doc(hidden)]
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Throttled => ErrorCode::LlmRateLimited,
            Self::Context => ErrorCode::ContextTooLong,
            Self::Deadline => ErrorCode::BudgetExceeded,
            Self::Closed | Self::Cancelled => ErrorCode::Cancelled,
            _ => ErrorCode::LlmFailed,
        }
    }

    /// The name as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Billing => "billing",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Transient => "transient",
            Self::Context => "context",
            Self::Permanent => "permanent",
            Self::Down => "down",
            Self::Timeout => "timeout",
            Self::Config => "config",
            Self::Local => "local",
            Self::Stale => "stale",
            Self::Cut => "cut",
            Self::BadAnswer => "bad_answer",
            Self::Truncated => "truncated",
            Self::Looping => "looping",
            Self::Script => "script",
            Self::Deadline => "deadline",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use LlmErrorClass as Class;

    use super::*;

    #[test]
    fn statuses_have_their_classes() {
        for (class, statuses) in [
            (Class::Billing, &[402][..]),
            (Class::Throttled, &[429]),
            (Class::Transient, &[408, 409, 425]),
            (Class::Overloaded, &[502, 503, 504, 529]),
            (Class::Server, &[500, 507, 520, 599]),
            (Class::Context, &[413]),
            (Class::Permanent, &[400, 401, 403, 404, 405, 422, 451, 501, 505]),
            (Class::Config, &[301, 302, 307, 308]),
        ] {
            for status in statuses {
                assert_eq!(Class::of_status(*status), class, "{status}");
            }
        }
    }

    #[test]
    fn the_servers_hint_decides_except_for_billing() {
        assert_eq!(Class::Permanent.retry(Some(true)), Retry::Yes);
        assert_eq!(Class::Throttled.retry(Some(false)), Retry::Never);
        assert_eq!(Class::Billing.retry(Some(true)), Retry::Never);
    }

    #[test]
    fn class_names_match_json() {
        for class in [Class::BadAnswer, Class::Cut, Class::Deadline, Class::Throttled] {
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
        }
    }
}
