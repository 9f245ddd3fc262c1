//! Words of servers in errors of ours.

use rmcp::model::ErrorData;
use serde_json::Value;

use crate::tool;

/// A server's words in an error of ours: as long as a person reads.
pub(in crate::session) fn brief(message: &str) -> String {
    const MOST: usize = 2000;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({} bytes)", &message[..end], message.len()),
        None => message.to_owned(),
    }
}

/// The words of an error of the protocol: its message, and its data unless the message says the same.
pub(in crate::session) fn of_error(error: &ErrorData) -> String {
    let data = match &error.data {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(data) => tool::written(data),
    };
    if data.is_empty() || matches!(&*data, "{}" | "[]") || error.message.contains(&data) {
        return brief(&error.message);
    }
    format!("{} ({})", brief(&error.message), brief(&data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_of_an_error_is_told() {
        let words = |message: &'static str, data: Value| {
            of_error(&ErrorData::new(rmcp::model::ErrorCode(-32000), message, Some(data)))
        };
        assert_eq!(words("no", "quota used up".into()), "no (quota used up)");
        assert_eq!(words("no", serde_json::json!({"left": 0})), r#"no ({"left":0})"#);
        assert_eq!(words("no: quota used up", "quota used up".into()), "no: quota used up");
        assert_eq!(words("no", serde_json::json!({})), "no");
    }

    #[test]
    fn long_strings_are_cut() {
        assert_eq!(brief("short ä"), "short ä");
        let long = brief(&"ä".repeat(3000));
        assert!(long.ends_with("ä... (6000 bytes)") && long.len() < 4100);
    }
}
