//! The arguments of a call while they are looked at. They are sent as they were written; the tree of their values, which takes many
//! times as much, is there for the checks and counts as long as it is.

use std::sync::{Arc, LazyLock};

use rmcp::model::ErrorData;
use serde_json::{Map, Value};

use super::budget::{Budget, BudgetFull, Held};
use crate::{
    json_rpc::{RawObject, repeated_name, tree_size},
    large::drop_beside,
};

/// Bytes of a tree that is dropped at once.
const OF_SMALL: usize = 1 << 20;

/// Arguments as values.
pub(super) struct Arguments {
    /// An object.
    pub(super) values: Arc<Value>,
    held: Held,
}

impl Arguments {
    /// The arguments in `params`, which are then there as an object, or not there. Some clients write nothing as `null`, as an
    /// empty text or list, and the object as a text.
    ///
    /// # Errors
    /// They are no object, a name in them is written twice, or they would take too much for their owner.
    pub(super) fn read(params: &mut RawObject, budget: &Arc<Budget>) -> Result<Self, ErrorData> {
        let no_object = || ErrorData::invalid_params("`arguments` must be an object", None);
        let nothing = || Self { values: Arc::new(Value::Object(Map::new())), held: budget.nothing() };
        let Some(raw) = params.get("arguments").map(serde_json::value::RawValue::get) else {
            return Ok(nothing());
        };
        let written = if raw.starts_with('{') { None } else { Some(serde_json::from_str::<String>(raw)) };
        let text: &str = match &written {
            Some(Ok(text)) => text,
            None | Some(Err(_)) => raw,
        };
        if written.is_some() && matches!(text.trim(), "" | "null" | "[]") {
            params.take("arguments");
            return Ok(nothing());
        }
        if let Some(name) = repeated_name(text) {
            let why = format!(
                "`arguments` has `{}` twice: rules and servers would see different values; send it once",
                super::activity::shown(&name, 200)
            );
            return Err(ErrorData::invalid_params(why, None));
        }
        let size = tree_size(text);
        let held = budget.take(size).map_err(|full| too_large(&full, size))?;
        let values: Map<String, Value> = serde_json::from_str(text).map_err(|_| no_object())?;
        if let Some(Ok(text)) = written {
            params.set_text("arguments", text);
        }
        Ok(Self { values: Arc::new(Value::Object(values)), held })
    }

    /// The members.
    pub(super) fn object(&self) -> &Map<String, Value> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.values.as_object().unwrap_or(&NONE)
    }

    /// Room for other forms of the same arguments.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn make_room(&mut self) -> Result<(), BudgetFull> {
        let size = self.held.bytes();
        self.held.grow(2 * size)
    }
}

impl Drop for Arguments {
    /// A large tree takes long to take apart.
    fn drop(&mut self) {
        if self.held.bytes() > OF_SMALL {
            drop_beside((std::mem::take(&mut self.values), self.held.take_all()));
        }
    }
}

fn too_large(full: &BudgetFull, size: usize) -> ErrorData {
    let mut error = ErrorData::from(full.clone());
    let size = super::budget::size(size);
    error.message = format!("the arguments take {size} while they are checked, and {full}").into();
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::budget::TotalBudget;

    fn read(text: &str, budget: &Arc<Budget>) -> (Result<Value, String>, Option<String>) {
        let mut params = RawObject::default();
        params.set_text("arguments", text.to_owned());
        let read = Arguments::read(&mut params, budget);
        let read = read.map(|read| (*read.values).clone()).map_err(|error| error.message.into_owned());
        (read, params.get("arguments").map(|raw| raw.get().to_owned()))
    }

    #[test]
    fn arguments_are_read_in_every_form_and_with_each_name_once() {
        let free = Arc::<Budget>::default();
        let object = serde_json::json!({"a": [1]});
        assert_eq!(read(r#"{"a":[1]}"#, &free), (Ok(object.clone()), Some(r#"{"a":[1]}"#.to_owned())));
        assert_eq!(read(r#""{\"a\":[1]}""#, &free), (Ok(object), Some(r#"{"a":[1]}"#.to_owned())));
        for nothing in ["null", "[]", "\" \"", "\"null\""] {
            assert_eq!(read(nothing, &free), (Ok(serde_json::json!({})), None), "{nothing}");
        }
        for wrong in ["7", "[1]", "\"x\""] {
            assert!(read(wrong, &free).0.unwrap_err().contains("must be an object"), "{wrong}");
        }
        for twice in [r#"{"a":1,"a":2}"#, r#""{\"b\":1,\"a\":{\"a\":1,\"\\u0061\":2}}""#] {
            assert!(read(twice, &free).0.unwrap_err().contains("twice"), "{twice}");
        }
    }

    #[test]
    fn a_tree_counts_as_long_as_it_is_there() {
        let budget = Arc::new(Budget::new("token `a`".to_owned(), 100_000, 1, &TotalBudget::new(100_000)));
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(1000));
        let mut params = RawObject::default();
        params.set_text("arguments", many.clone());
        let arguments = Arguments::read(&mut params, &budget).ok().unwrap();
        assert!(budget.held() > 72_000);
        let refused = read(&many, &budget).0.unwrap_err();
        assert!(refused.contains("while they are checked") && refused.contains("token `a`"), "{refused}");
        drop(arguments);
        assert_eq!(budget.held(), 0);
    }
}
