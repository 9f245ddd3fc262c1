//! Progress of a call, as its server reports it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::json_rpc::RawObject;

/// One report of a server on a call under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// So much is done; it grows from one report to the next. In units of the server's own.
    pub progress: f64,
    /// So much is to be done in all, if the server knows.
    pub total: Option<f64>,
    /// Description of the current step, in the server's words.
    pub message: Option<String>,
}

impl Progress {
    /// The report in the parameters of a notification. `None`: it does not say how much is done.
    pub(super) fn read(params: &RawValue) -> Option<Self> {
        let members = RawObject::parse(Some(params)).ok()?;
        let number = |name: &str| {
            members.read::<f64>(name).or_else(|| members.read::<String>(name)?.trim().parse().ok())
        };
        Some(Self { progress: number("progress")?, total: number("total"), message: members.read("message") })
    }
}

/// Gets each report in order. It runs in the task that reads the server's messages, so it must not block.
pub type ProgressListener = Arc<dyn Fn(Progress) + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_member_by_member() {
        let read = |raw: &str| Progress::read(&RawValue::from_string(raw.to_owned()).unwrap());
        let report = |progress, total, message: Option<&str>| {
            Some(Progress { progress, total, message: message.map(ToOwned::to_owned) })
        };
        assert_eq!(read(r#"{"progress":1,"total":2,"message":"a"}"#), report(1.0, Some(2.0), Some("a")));
        assert_eq!(read(r#"{"progress":"0.5","total":null,"message":7}"#), report(0.5, None, None));
        assert_eq!(read(r#"{"progress":null}"#), None);
        assert_eq!(read("5"), None);
    }
}
