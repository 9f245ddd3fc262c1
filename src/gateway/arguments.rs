//! The arguments of a call while they are looked at. They are sent as they were written; the tree of their values, which takes many
//! times as much, is there for the checks alone.

use std::sync::{Arc, LazyLock};

use rmcp::model::ErrorData;
use serde_json::{Map, Value};

use crate::json_rpc::{RawObject, repeated_name};

/// Arguments as values.
pub(super) struct Arguments {
    /// An object.
    pub(super) values: Arc<Value>,
}

impl Arguments {
    /// The arguments in `params`, which are then there as an object, or not there. Some clients write nothing as `null`, as an
    /// empty text or list, and the object as a text.
    ///
    /// # Errors
    /// They are no object, or a name in them is written twice.
    pub(super) fn read(params: &mut RawObject) -> Result<Self, ErrorData> {
        let no_object = || ErrorData::invalid_params("`arguments` must be an object", None);
        let nothing = || Self { values: Arc::new(Value::Object(Map::new())) };
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
        let values: Map<String, Value> = serde_json::from_str(text).map_err(|_| no_object())?;
        if let Some(Ok(text)) = written {
            params.set_text("arguments", text);
        }
        Ok(Self { values: Arc::new(Value::Object(values)) })
    }

    /// The members.
    pub(super) fn object(&self) -> &Map<String, Value> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        self.values.as_object().unwrap_or(&NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Result<Value, String>, Option<String>) {
        let mut params = RawObject::default();
        params.set_text("arguments", text.to_owned());
        let read = Arguments::read(&mut params);
        let read = read.map(|read| (*read.values).clone()).map_err(|error| error.message.into_owned());
        (read, params.get("arguments").map(|raw| raw.get().to_owned()))
    }

    #[test]
    fn arguments_are_read_in_every_form_and_with_each_name_once() {
        let object = serde_json::json!({"a": [1]});
        assert_eq!(read(r#"{"a":[1]}"#), (Ok(object.clone()), Some(r#"{"a":[1]}"#.to_owned())));
        assert_eq!(read(r#""{\"a\":[1]}""#), (Ok(object), Some(r#"{"a":[1]}"#.to_owned())));
        for nothing in ["null", "[]", "\" \"", "\"null\""] {
            assert_eq!(read(nothing), (Ok(serde_json::json!({})), None), "{nothing}");
        }
        for wrong in ["7", "[1]", "\"x\""] {
            assert!(read(wrong).0.unwrap_err().contains("must be an object"), "{wrong}");
        }
        for twice in [r#"{"a":1,"a":2}"#, r#""{\"b\":1,\"a\":{\"a\":1,\"\\u0061\":2}}""#] {
            assert!(read(twice).0.unwrap_err().contains("twice"), "{twice}");
        }
    }
}
