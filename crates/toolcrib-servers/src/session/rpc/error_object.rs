//! The error in an answer, read member by member: whatever a server writes there, its words reach the caller.

use rmcp::model::{ErrorCode, ErrorData};
use serde_json::value::RawValue;

use crate::{
    json_rpc::{RawObject, whole_number},
    tool,
};

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
    let data = data.map(tool::kept);
    ErrorData::new(number.map_or(ErrorCode::INTERNAL_ERROR, ErrorCode), message, data)
}

/// Whether `raw` says that there is no error, as some servers write beside a result.
pub(in crate::session) fn is_none(raw: &RawValue) -> bool {
    if matches!(raw.get(), "null" | "false" | "0" | "\"\"") {
        return true;
    }
    RawObject::parse(Some(raw)).is_ok_and(|error| {
        let is_nothing = |name: &str| {
            let nothing = ["null", "0", "\"\"", "false", "{}", "[]"];
            error.get(name).is_none_or(|member| nothing.contains(&member.get()))
        };
        error.names().all(|name| matches!(name, "code" | "message" | "data") && is_nothing(name))
    })
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
    fn an_error_without_a_word_is_none() {
        for (raw, none) in [
            (r#"{"code":0,"message":"","data":null}"#, true),
            ("{}", true),
            ("[]", true),
            ("false", true),
            ("\"\"", true),
            (r#"{"code":0,"message":"no"}"#, false),
            (r#"{"code":-1,"message":""}"#, false),
            (r#"{"detail":"why"}"#, false),
            ("true", false),
        ] {
            assert_eq!(is_none(&RawValue::from_string(raw.to_owned()).unwrap()), none, "{raw}");
        }
    }

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

    #[test]
    fn numbers_in_the_data_are_exact() {
        let raw = r#"{"code":1,"message":"no","data":{"n":[1,123456789012345678901234567890]}}"#;
        let error = error_object(&RawValue::from_string(raw.to_owned()).unwrap());
        assert_eq!(tool::written(&error.data.unwrap()), r#"{"n":[1,123456789012345678901234567890]}"#);
        let plain = tool::kept(&RawValue::from_string(r#"{"n":[1,2.5]}"#.to_owned()).unwrap());
        assert_eq!(plain, json!({"n": [1, 2.5]}));
        let forged = json!({"\0toolcrib::written": "}{"});
        assert_eq!(tool::written(&forged), forged.to_string());
    }
}
