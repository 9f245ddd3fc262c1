//! Cuts the longest texts of a structured result in place, so that what is left has the shape that its tool promises.

use std::ops::Range;

use crate::session::rpc::json_string;

/// Bytes of a note beside the place that it names.
const NOTE: usize = 64;

/// The texts in `json`, a valid JSON text: where each of them is, with its quotes. Names of members are none.
fn texts(json: &str) -> Vec<Range<usize>> {
    let bytes = json.as_bytes();
    let (mut texts, mut at) = (Vec::new(), 0);
    while let Some(found) = memchr::memchr(b'"', bytes.get(at..).unwrap_or_default()) {
        let begin = at + found;
        let end = (begin + 2 + super::truncate::end_of_string(&bytes[begin + 1..])).min(bytes.len());
        let next = bytes[end..].iter().find(|byte| !byte.is_ascii_whitespace());
        if next != Some(&b':') {
            texts.push(begin..end);
        }
        at = end;
    }
    texts
}

/// The length that no text may exceed, so that `over` bytes are saved, and a note of `note` bytes fits behind each that is cut.
/// `None`: the texts are too short for that.
fn level(mut lengths: Vec<usize>, over: usize, note: usize) -> Option<usize> {
    lengths.sort_unstable_by(|one, other| other.cmp(one));
    let mut sum = 0_usize;
    for (index, length) in lengths.iter().enumerate() {
        sum += length;
        let count = index + 1;
        let left = sum.checked_sub(over).map(|left| left / count).and_then(|left| left.checked_sub(note));
        let next = lengths.get(count).copied().unwrap_or_default();
        if let Some(left) = left.filter(|left| *left >= next) {
            return Some(left);
        }
    }
    None
}

/// `json` within `limit` bytes: its longest texts are cut, and end with a note that names `place`, where all of it is. `None`: it
/// is not its texts that are too long.
pub(super) fn shortened(json: &str, limit: usize, place: &str) -> Option<String> {
    let over = json.len().checked_sub(limit)?;
    let texts = texts(json);
    // With its quotes and separators a note costs a little more than its words.
    let note = NOTE + serde_json::Value::from(place).to_string().len();
    let most = level(texts.iter().map(|text| text.len().saturating_sub(2)).collect(), over, note)?;
    let (mut short, mut copied) = (String::with_capacity(limit), 0);
    for text in texts.into_iter().filter(|text| text.len().saturating_sub(2) > most) {
        short.push_str(&json[copied..text.start]);
        copied = text.end;
        short.push_str(&cut(&json[text], most, place));
    }
    short.push_str(&json[copied..]);
    Some(short)
}

/// The beginning of a text that fits into `most` bytes of JSON, with a note about the rest.
fn cut(raw: &str, most: usize, place: &str) -> String {
    let (mut shown, mut left) = (String::new(), most);
    // Ends early, with an error that says only that.
    let _ = json_string::pieces(raw, |piece| {
        let is_character = piece.chars().nth(1).is_none();
        let bytes =
            if is_character { serde_json::Value::from(piece).to_string().len() - 2 } else { piece.len() };
        let mut end = piece.len();
        if bytes > left {
            end = if is_character { 0 } else { left };
        }
        while !piece.is_char_boundary(end) {
            end -= 1;
        }
        shown.push_str(&piece[..end]);
        left = left.saturating_sub(bytes);
        if end < piece.len() { Err(()) } else { Ok(()) }
    });
    let (count, all) = (shown.len(), json_string::length(raw));
    let line = if count == 0 { "" } else { "\n" };
    serde_json::Value::from(format!("{shown}{line}[cut: {count} of {all} bytes are shown; {place}]"))
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_longest_texts_are_cut_and_the_shape_stays() {
        let long = |letter: &str, count| letter.repeat(count);
        let whole = json!({
            "a": long("a", 3000), "b": {"b": [long("ä\n\"", 1500), 7, "short"]}, long("k", 300): null, "c": long("c", 100),
        });
        let text = whole.to_string();
        let short = shortened(&text, 2000, "it is in /a/\"b\"").unwrap();
        assert!(short.len() <= 2000 && short.len() > 1800, "{}", short.len());
        let read: Value = serde_json::from_str(&short).unwrap();
        assert_eq!(
            (&read["c"], &read["b"]["b"][1], &read["b"]["b"][2]),
            (&whole["c"], &json!(7), &json!("short"))
        );
        assert_eq!(read.get(long("k", 300)), Some(&Value::Null));
        for cut in [&read["a"], &read["b"]["b"][0]] {
            assert!(cut.as_str().unwrap().ends_with("bytes are shown; it is in /a/\"b\"]"), "{cut}");
        }
        assert!(read["a"].as_str().unwrap().contains("of 3000 bytes"), "{read}");
    }

    #[test]
    fn what_has_no_long_texts_is_not_cut() {
        assert_eq!(shortened(&json!(vec![7; 1000]).to_string(), 100, ""), None);
        assert_eq!(shortened(&json!(vec!["abc"; 1000]).to_string(), 100, ""), None);
        let escapes = format!("\"{}\"", "\\ud83d\\ude00".repeat(500));
        let short = shortened(&escapes, 300, "x").unwrap();
        let read: String = serde_json::from_str(&short).unwrap();
        assert!(short.len() <= 300 && read.starts_with("😀😀") && !read.contains('\u{fffd}'), "{read}");
    }
}
