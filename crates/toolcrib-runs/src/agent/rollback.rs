//! Discards an unusable answer and asks the model again from the same point.

use std::collections::HashSet;

use serde_json::Value;

use super::tool_set::CheckedCall;
use crate::{config::RollbackConfig, tool::canonical};

/// Limit of rollbacks in one task: a model that never recovers must end.
const MAX_IN_ALL: u32 = 200;

/// How often a task was set back.
#[derive(Debug, Default)]
pub(super) struct Rollbacks {
    in_a_row: u32,
    in_all: u32,
}

impl Rollbacks {
    /// Counts one more, if there may be one.
    pub(super) fn take(&mut self, config: &RollbackConfig) -> Option<u32> {
        if self.in_a_row >= config.max || self.in_all >= MAX_IN_ALL {
            return None;
        }
        self.in_a_row += 1;
        self.in_all += 1;
        Some(self.in_a_row)
    }

    /// A turn went well; says how many did not before it.
    pub(super) fn recovered(&mut self) -> u32 {
        std::mem::take(&mut self.in_a_row)
    }

    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

/// Whether an answer without calls refuses the task. Marks and case of letters do not count.
pub(super) fn refuses(config: &RollbackConfig, text: &str) -> bool {
    let plain = |text: &str| text.to_lowercase().replace('\u{2019}', "'");
    let text = plain(text);
    config.refusals.iter().any(|phrase| text.contains(&plain(phrase)))
}

/// The queries of one task so far that brought something.
#[derive(Debug, Default)]
pub(super) struct SeenQueries(HashSet<String>);

impl SeenQueries {
    pub(super) fn knows(&self, query: &str) -> bool {
        self.0.contains(query)
    }

    /// Call it when the turn is kept: queries of a turn that is rolled back do not count.
    pub(super) fn remember(&mut self, queries: impl IntoIterator<Item = String>) {
        self.0.extend(queries);
    }
}

/// The query of a call: the tool and its arguments in canonical order, limited to the arguments that are configured as its
/// query.
pub(super) fn query(config: &RollbackConfig, call: &CheckedCall) -> String {
    let tool = call.entry.path();
    let chosen =
        config.query_arguments.get(&tool).or_else(|| config.query_arguments.get(&call.entry.tool.name));
    let counts = |key: &str| chosen.is_none_or(|keys| keys.iter().any(|chosen| chosen == key));
    let arguments: Value = call
        .arguments
        .iter()
        .filter(|(key, _)| counts(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    format!("{tool} {}", canonical(arguments))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rollbacks_are_limited_in_a_row_and_in_total() {
        let config = RollbackConfig { max: 4, ..RollbackConfig::default() };
        let mut rollbacks = Rollbacks::default();
        let row = |rollbacks: &mut Rollbacks| std::iter::from_fn(|| rollbacks.take(&config)).count();
        assert_eq!(row(&mut rollbacks), 4);
        assert_eq!((rollbacks.recovered(), rollbacks.recovered()), (4, 0));
        let mut all = 4;
        for _ in 0..100 {
            all += row(&mut rollbacks);
            rollbacks.recovered();
        }
        assert_eq!(all, 200);
    }

    #[test]
    fn refusals_are_found_with_any_quotes() {
        let config = RollbackConfig::default();
        assert!(refuses(&config, "I\u{2019}m sorry, but I can\u{2019}t do that."));
        assert!(refuses(&config, "Due to Time Constraints I stop."));
        assert!(!refuses(&config, "The time is 12."));
    }

    #[test]
    fn equal_values_have_equal_text() {
        let one = json!({"b": [1, {"y": 1, "x": null}], "a": "\""});
        let other = json!({"a": "\"", "b": [1, {"x": null, "y": 1}]});
        assert_eq!(canonical(one), canonical(other));
        assert_ne!(canonical(json!([1, 2])), canonical(json!([2, 1])));
        assert_ne!(canonical(json!({"a": "1"})), canonical(json!({"a": 1})));
    }
}
