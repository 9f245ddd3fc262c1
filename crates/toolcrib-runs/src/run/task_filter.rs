//! Which tasks of a file are run: conditions on their ids and their metadata.

use std::str::FromStr;

use globset::{Glob, GlobMatcher};
use serde_json::Value;

use crate::task::Task;

/// Conditions that a task must meet, as in `id=gaia/* and metadata.level>=2`.
#[derive(Clone, Debug)]
pub struct TaskFilter(Vec<Condition>);

#[derive(Clone, Debug)]
struct Condition {
    /// `id`, or the path of a value in `metadata`.
    field: Vec<String>,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    /// The text matches a pattern, or does not.
    Matches(GlobMatcher, bool),
    /// The number compares so with another.
    Compares(fn(&f64, &f64) -> bool, f64),
}

impl FromStr for TaskFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(" and ").map(|condition| condition.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no condition such as id=gaia/* or metadata.level>=2");
        let at = text.find(['=', '!', '<', '>']).ok_or_else(wrong)?;
        let length = if text[at + 1..].starts_with('=') { 2 } else { 1 };
        let (field, operator, value) =
            (text[..at].trim(), &text[at..at + length], text[at + length..].trim());
        let field: Vec<String> = match field.split_once('.') {
            None if field == "id" => vec!["id".to_owned()],
            Some(("metadata", path)) if !path.is_empty() => path.split('.').map(str::to_owned).collect(),
            _ => return Err(format!("`{field}`: a task is chosen by `id` or by `metadata.KEY`")),
        };
        let pattern =
            || Glob::new(value).map(|glob| glob.compile_matcher()).map_err(|error| error.to_string());
        let number = || {
            let number = value.parse().ok().filter(|number: &f64| number.is_finite());
            number.ok_or_else(|| format!("`{value}` is no number"))
        };
        let test = match operator {
            "=" | "==" => Test::Matches(pattern()?, true),
            "!=" => Test::Matches(pattern()?, false),
            "<" => Test::Compares(f64::lt, number()?),
            "<=" => Test::Compares(f64::le, number()?),
            ">" => Test::Compares(f64::gt, number()?),
            ">=" => Test::Compares(f64::ge, number()?),
            _ => return Err(wrong()),
        };
        Ok(Self { field, test })
    }
}

impl TaskFilter {
    /// Whether a task meets all conditions.
    pub fn wants(&self, task: &Task) -> bool {
        self.0.iter().all(|condition| condition.is_met(task))
    }
}

impl Condition {
    fn is_met(&self, task: &Task) -> bool {
        let id = Value::from(&*task.id);
        let value = match &self.field[..] {
            [only] if only == "id" => Some(&id),
            [first, rest @ ..] => {
                rest.iter().try_fold(task.metadata.get(first), |value, key| Some(value?.get(key))).flatten()
            }
            [] => None,
        };
        match &self.test {
            Test::Matches(pattern, wanted) => {
                let text = value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
                text.is_some_and(|text| pattern.is_match(text)) == *wanted
            }
            Test::Compares(compare, number) => {
                let value = value.and_then(|value| value.as_f64().or_else(|| value.as_str()?.parse().ok()));
                value.is_some_and(|value| compare(&value, number))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tasks_are_chosen_by_id_and_metadata() {
        let mut task = Task::question("gaia/0017", "?");
        task.metadata = json!({"level": 2, "kind": "web", "a": {"b": "3"}}).as_object().cloned().unwrap();
        for (filter, wanted) in [
            ("id=gaia/*", true),
            ("id = gaia/0017", true),
            ("id=gaia", false),
            ("id!=gaia/*", false),
            ("metadata.level=2", true),
            ("metadata.level>=2 and metadata.kind=web", true),
            ("metadata.level>2", false),
            ("metadata.a.b<4", true),
            ("metadata.none=x", false),
            ("metadata.none!=x", true),
            ("metadata.kind<3", false),
        ] {
            assert_eq!(filter.parse::<TaskFilter>().unwrap().wants(&task), wanted, "{filter}");
        }
        for wrong in [
            "",
            "id",
            "level=2",
            "metadata.=2",
            "metadata.level>x",
            "id=[",
            "id=a and level=2",
            "metadata.level!2",
        ] {
            assert!(wrong.parse::<TaskFilter>().is_err(), "{wrong}");
        }
    }
}
