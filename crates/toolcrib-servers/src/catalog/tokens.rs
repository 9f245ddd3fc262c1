//! An estimate of what a tool costs in the context of a model.

use serde::Serialize;
use serde_json::json;

use super::CatalogEntry;
use crate::tool::Tool;

/// The rule of [`estimated_tokens`], in words.
pub const TOKEN_RULE: &str =
    "estimated: a token for each 12 letters of a word, 3 digits or 4 other characters";

/// About how many tokens a model reads in `text`: one for each 12 letters of a word, each 3 digits of a number, each 4
/// other characters in a row, and each 2 letters that are not ASCII. Spaces cost nothing. For lists of tools this is
/// within a tenth of what the tokenizers of OpenAI count (docs/servers.md); other models differ more.
pub fn estimated_tokens(text: &str) -> usize {
    #[derive(PartialEq, Clone, Copy)]
    enum Kind {
        Letters,
        Digits,
        Foreign,
        Signs,
        Space,
    }
    let kind_of = |c: char| match c {
        c if c.is_whitespace() => Kind::Space,
        c if c.is_ascii_alphabetic() => Kind::Letters,
        c if c.is_ascii_digit() => Kind::Digits,
        c if c.is_alphanumeric() => Kind::Foreign,
        _ => Kind::Signs,
    };
    let cost = |kind: Kind, length: usize| match kind {
        Kind::Space => 0,
        Kind::Letters => length.div_ceil(12),
        Kind::Digits => length.div_ceil(3),
        Kind::Foreign => length.div_ceil(2),
        Kind::Signs => length.div_ceil(4),
    };
    let (mut tokens, mut run, mut length) = (0, Kind::Space, 0);
    for kind in text.chars().map(kind_of) {
        if kind != run {
            tokens += cost(run, length);
            (run, length) = (kind, 0);
        }
        length += 1;
    }
    tokens + cost(run, length)
}

/// About how many tokens a model reads to know a tool: its name, description and arguments as JSON.
pub fn shown_tokens(name: &str, description: &str, arguments: &impl Serialize) -> usize {
    let shown = json!({"name": name, "description": description, "parameters": arguments});
    estimated_tokens(&shown.to_string())
}

impl CatalogEntry {
    /// About how many tokens this tool costs a model that is told of it, by [`estimated_tokens`].
    pub fn tokens(&self) -> usize {
        *self.tokens.get_or_init(|| {
            let Tool { description, input_schema, .. } = &self.tool;
            shown_tokens(&self.visible_name, description, input_schema)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_numbers_and_signs_are_counted() {
        for (text, tokens) in [
            ("", 0),
            ("Get the time", 3),
            ("internationalization", 2),
            ("12345", 2),
            ("{\"a\": 1}", 5),
            ("read_file", 3),
            ("длина", 3),
            ("時間", 1),
        ] {
            assert_eq!(estimated_tokens(text), tokens, "{text}");
        }
    }
}
