//! How a secret may be written where it is shown.

use std::collections::BTreeSet;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::Secrets;

/// What stays as it is in every part of an address.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same as libraries of addresses write it, which leave more as it is.
const ESCAPED_BY_LIBRARIES: &AsciiSet = &ESCAPED
    .remove(b'!')
    .remove(b'$')
    .remove(b'%')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',');

/// The same in a form, where a blank is a `+` besides.
const ESCAPED_IN_FORMS: &AsciiSet = &ESCAPED.remove(b'*').add(b'~');
/// How deep JSON may be text in JSON: a result that is JSON, in a message, in a document.
const JSON_DEPTH: usize = 3;

/// How `value` may be written: as it is, line by line, as part of an address or of a form, and each in JSON, with and
/// without letters beyond ASCII.
pub(super) fn forms(value: &str) -> impl Iterator<Item = String> {
    let lines = value.lines().map(str::trim).filter(|line| line.len() >= Secrets::SHORTEST);
    let encode = |set| utf8_percent_encode(value, set).to_string();
    let escaped = [ESCAPED, ESCAPED_BY_LIBRARIES].map(encode);
    let in_forms = [ESCAPED, ESCAPED_IN_FORMS].map(|set| encode(set).replace("%20", "+"));
    let plain = std::iter::once(value).chain(lines).map(str::to_owned);
    plain.chain(escaped).chain(in_forms).flat_map(|text| {
        let mut all = BTreeSet::from([text]);
        for _ in 0..JSON_DEPTH {
            let deeper: Vec<String> = all.iter().flat_map(|text| in_json(text)).collect();
            all.extend(deeper);
        }
        all
    })
}

/// `text` inside a JSON string, with and without letters beyond ASCII.
fn in_json(text: &str) -> [String; 2] {
    let quoted = Value::from(text).to_string();
    let escaped = quoted[1..quoted.len() - 1].to_owned();
    let mut ascii = String::with_capacity(escaped.len());
    for c in escaped.chars() {
        match c {
            '\0'..='\x7f' => ascii.push(c),
            _ => ascii.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
        }
    }
    [escaped, ascii]
}
