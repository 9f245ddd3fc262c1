//! Conversions from the SDK's types to ours.

use rmcp::model;

use crate::tool::ToolResult;

/// A complete result.
pub(super) fn result(result: model::CallToolResult) -> ToolResult {
    let content = result.content.iter().map(|block| serde_json::to_value(block).unwrap_or_default());
    ToolResult::new(content.collect(), result.structured_content, result.is_error.unwrap_or(false))
}

/// A server's words in an error of ours: as long as a person reads.
pub(in crate::session) fn brief(message: &str) -> String {
    const MOST: usize = 2000;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({} bytes)", &message[..end], message.len()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_cut() {
        assert_eq!(brief("short ä"), "short ä");
        let long = brief(&"ä".repeat(3000));
        assert!(long.ends_with("ä... (6000 bytes)") && long.len() < 4100);
    }
}
