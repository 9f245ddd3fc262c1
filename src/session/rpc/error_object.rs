//! The error in an answer, read member by member: whatever a server writes there, its words reach the caller.

use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Value, value::RawValue};

use crate::json_rpc::{RawObject, whole_number};

/// The error that `raw` is. A code that is no number is named in the message, and a message that is missing is the error
/// as it was written.
pub(in crate::session) fn error_object(raw: &RawValue) -> ErrorData {
    let error = match RawObject::parse(Some(raw)) {
        Ok(error) if !error.is_empty() => error,
        _ => return ErrorData::internal_error(words(raw).unwrap_or_else(|| raw.get().to_owned()), None),
    };
    let code = error.get("code");
    let number = code.and_then(|code| i32::try_from(whole_number(code.get())?).ok());
    let mut message = error.get("message").and_then(words).unwrap_or_else(|| raw.get().to_owned());
    if let (None, Some(code)) = (number, code.filter(|code| code.get() != "null")) {
        message.push_str(&format!(" (code {})", words(code).unwrap_or_else(|| code.get().to_owned())));
    }
    let data = error.get("data").filter(|data| data.get() != "null");
    let data = data.map(|data| serde_json::from_str(data.get()).unwrap_or_else(|_| Value::from(data.get())));
    ErrorData::new(number.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode), message, data)
}

/// A text that is not empty; other values as they are written.
fn words(raw: &RawValue) -> Option<String> {
    match raw.get() {
        "null" | "\"\"" => None,
        text => Some(serde_json::from_str(text).unwrap_or_else(|_| text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_error_object_keeps_its_words() {
        for (raw, code, message, data) in [
            (r#"{"code":-32601,"message":"no","data":{"a":1}}"#, -32601, "no", Some(json!({"a": 1}))),
            (r#"{"code":"-32601","message":"no"}"#, -32601, "no", None),
            (r#"{"code":-32000.0,"message":"no","data":null}"#, -32000, "no", None),
            (r#"{"code":"E_QUOTA","message":"used up"}"#, -32603, "used up (code E_QUOTA)", None),
            (r#"{"code":99999999999,"message":"far"}"#, -32603, "far (code 99999999999)", None),
            (r#"{"code":5,"message":{"a":1}}"#, 5, r#"{"a":1}"#, None),
            (r#"{"code":5,"message":null}"#, 5, r#"{"code":5,"message":null}"#, None),
            (r#"{"detail":"why"}"#, -32603, r#"{"detail":"why"}"#, None),
            (r#""just a text""#, -32603, "just a text", None),
            ("true", -32603, "true", None),
            ("[]", -32603, "[]", None),
        ] {
            let error = error_object(&RawValue::from_string(raw.to_owned()).unwrap());
            assert_eq!((error.code.0, &*error.message, error.data), (code, message, data), "{raw}");
        }
    }
}
