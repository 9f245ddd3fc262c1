//! Secret values: which ones they are, and how they are kept out of everything that is printed.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use serde_json::Value;

/// Secret values, hidden as `****` in everything that is printed or written.
///
/// A value is secret if it came from a variable outside the inherited names, from an `env_file` or from
/// `api_key`, if it is a credential in a header or an address, or if its name ends in `KEY`, `TOKEN`,
/// `SECRET`, `PASSWORD` or `CREDENTIALS`. Values shorter than [`Secrets::SHORTEST`] bytes are not searched
/// for: they would turn ordinary text into stars. Of a value of several lines each line is secret by itself.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Arc<[String]>,
    /// What is searched for: how the values may be written.
    forms: Arc<[String]>,
}

impl Secrets {
    /// Shortest value that is searched for, in bytes.
    pub const SHORTEST: usize = 6;

    /// Collects values; short and repeated ones are dropped.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let values: BTreeSet<String> = values.into_iter().filter(|v| v.len() >= Self::SHORTEST).collect();
        let forms: BTreeSet<String> = values.iter().flat_map(|value| forms(value)).collect();
        Self { values: values.into_iter().collect(), forms: forms.into_iter().collect() }
    }

    /// These and `more`: what was secret once stays secret.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        Self::new(self.values.iter().chain(more.values.iter()).cloned())
    }

    /// These and the secret parts of an address: a password before the host, and query parameters with telling names.
    #[must_use]
    pub fn and_of_url(&self, url: &str) -> Self {
        let mut found = Vec::new();
        in_url(url, &mut found);
        self.and(&Self::new(found))
    }

    /// `text` with every secret replaced by `****`, in plain and in JSON-escaped form.
    pub fn hide(&self, text: &str) -> String {
        stars(text, self.found(text))
    }

    /// Hides every secret in the texts of a document, and numbers that are one. Names of fields stay.
    pub(crate) fn hide_in(&self, document: &mut Value) {
        match document {
            Value::String(text) if !self.found(text).is_empty() => *text = self.hide(text),
            Value::Number(number) if !self.found(&number.to_string()).is_empty() => {
                *document = Value::String("****".to_owned());
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide_in(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.hide_in(field)),
            _ => {}
        }
    }

    /// As [`Secrets::hide`], for text that was cut at its end: the beginning of a secret is hidden there, too.
    pub fn hide_cut(&self, text: &str) -> String {
        // The cut may have gone through a character.
        let text = text.trim_end_matches('\u{fffd}');
        let mut found = self.found(text);
        found.extend(self.begun(text));
        stars(text, found)
    }

    /// Of a text that goes on, the bytes at its beginning that no secret reaches into, whatever follows.
    pub fn settled(&self, text: &str) -> usize {
        let mut settled = self.begun(text).map(|begun| begun.start).min().unwrap_or(text.len());
        let mut found = self.found(text);
        found.sort_by_key(|place| std::cmp::Reverse(place.start));
        // No whole one is cut in two either.
        for Range { start, end } in found {
            if start < settled && settled < end {
                settled = start;
            }
        }
        settled
    }

    /// Where each secret may begin that goes on after the end of `text`.
    fn begun(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        let begun = |form: &String| {
            let ends = form.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|end| text.ends_with(&form[..*end])).max()
        };
        self.forms.iter().filter_map(begun).map(|length| text.len() - length..text.len())
    }

    /// Where secrets are in `text`: all of them, since one may begin inside of another.
    fn found(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for form in self.forms.iter() {
            let step = form.chars().next().map_or(1, char::len_utf8);
            let mut from = 0;
            while let Some(at) = text.get(from..).and_then(|rest| rest.find(form.as_str())) {
                found.push(from + at..from + at + form.len());
                from += at + step;
            }
        }
        found
    }
}

/// How `value` may be written: as it is, line by line, and each in JSON, with and without letters beyond ASCII.
fn forms(value: &str) -> impl Iterator<Item = String> {
    let lines = value.lines().map(str::trim).filter(|line| line.len() >= Secrets::SHORTEST);
    let plain = std::iter::once(value).chain(lines);
    plain.flat_map(|text| {
        let quoted = Value::from(text).to_string();
        let escaped = quoted[1..quoted.len() - 1].to_owned();
        let mut ascii = String::with_capacity(escaped.len());
        for c in escaped.chars() {
            match c {
                '\0'..='\x7f' => ascii.push(c),
                _ => ascii.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}"))),
            }
        }
        [text.to_owned(), escaped, ascii]
    })
}

/// `text` with four stars for each of `places`, or for several that overlap.
fn stars(text: &str, mut places: Vec<Range<usize>>) -> String {
    places.sort_by_key(|place| place.start);
    let mut hidden = String::with_capacity(text.len());
    let mut shown = 0;
    for Range { start, end } in places {
        if start >= shown {
            hidden.push_str(&text[shown..start]);
            hidden.push_str("****");
        }
        shown = shown.max(end);
    }
    hidden.push_str(&text[shown..]);
    hidden
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.values.len())
    }
}

/// Whether a variable, header or query parameter of this name holds a secret by its name alone.
pub(crate) fn secret_name(name: &str) -> bool {
    const ENDINGS: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"];
    let name = name.to_ascii_uppercase();
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// The secret parts of a header: all of a credential header, with and without its scheme (`Bearer`).
pub(super) fn in_header(name: &str, value: &str, found: &mut Vec<String>) {
    let credential = ["authorization", "proxy-authorization", "cookie"];
    if !credential.contains(&name.to_ascii_lowercase().as_str()) && !secret_name(name) {
        return;
    }
    found.push(value.to_owned());
    if let Some((_, bare)) = value.split_once(' ') {
        found.push(bare.trim().to_owned());
    }
}

/// The secret parts of an address: a password before the host, and query parameters with telling names.
pub(super) fn in_url(url: &str, found: &mut Vec<String>) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host = place.split('/').next().unwrap_or_default();
    if let Some((user, _)) = host.rsplit_once('@') {
        found.push(user.split_once(':').map_or(user, |(_, password)| password).to_owned());
    }
    let query = query.split('#').next().unwrap_or_default();
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        if secret_name(name) {
            found.push(value.to_owned());
        }
    }
}

/// Scheme, host and port of an address: what can be shown without showing a secret.
pub(super) fn origin_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_whole_plain_and_escaped() {
        let secrets =
            Secrets::new(["hunter2-long".into(), "hunter2".into(), "a\"quoted\"".into(), "tiny".into()]);
        assert_eq!(secrets.hide("hunter2-long hunter2 tiny"), "**** **** tiny");
        assert_eq!(secrets.hide(r#"{"v":"a\"quoted\""}"#), r#"{"v":"****"}"#);
        assert_eq!(format!("{secrets:?}"), "Secrets(3)");
    }

    #[test]
    fn the_shortest_value_that_is_hidden_is_the_documented_one() {
        let secrets = Secrets::new(["s".repeat(Secrets::SHORTEST), "t".repeat(Secrets::SHORTEST - 1)]);
        assert_eq!(secrets.hide("ssssss ttttt"), "**** ttttt");
        let documented = format!("fewer than {} bytes", Secrets::SHORTEST);
        for (file, text) in [
            ("servers.toml", include_str!("../../servers.toml")),
            ("README.md", include_str!("../../README.md")),
        ] {
            assert!(text.contains(&documented), "{file} does not say: {documented}");
        }
    }

    #[test]
    fn nothing_is_left_of_secrets_that_overlap() {
        let secrets = Secrets::new(["first-second".into(), "second-third".into(), "abcabcab".into()]);
        assert_eq!(secrets.hide("<first-second-third>"), "<****>");
        assert_eq!(secrets.hide("<abcabcabcab>"), "<****>");
        assert_eq!(secrets.hide("second-thirdfirst-second"), "********");
        assert_eq!(secrets.hide_cut("first-second-th"), "****");
    }

    #[test]
    fn secrets_of_several_lines_are_hidden_line_by_line() {
        let secrets =
            Secrets::new(["-----BEGIN-----\nMIIEvQ\u{e9}\"x\n  short\n".into(), "with space ".into()]);
        assert_eq!(secrets.hide("a MIIEvQ\u{e9}\"x b"), "a **** b");
        assert_eq!(secrets.hide(r#"{"key":"MIIEvQ\u00e9\"x"}"#), r#"{"key":"****"}"#);
        assert_eq!(secrets.hide(r#"["-----BEGIN-----\nMIIEvQ\u00e9\"x\n  short\n"]"#), r#"["****"]"#);
        assert_eq!(secrets.hide("with space, short"), "****, short");
    }

    #[test]
    fn the_beginning_of_a_secret_is_hidden_where_text_was_cut() {
        let secrets = Secrets::new(["a\"quoted\"-value".into(), "other-value".into()]);
        assert_eq!(secrets.hide_cut(r#"{"v":"a\"quo"#), r#"{"v":"****"#);
        assert_eq!(secrets.hide_cut("an other-value, oth"), "an ****, ****");
        assert_eq!(secrets.hide_cut("whole"), "whole");
    }

    #[test]
    fn text_that_goes_on_is_settled_up_to_where_a_secret_may_begin() {
        let secrets = Secrets::new(["other-value".into(), "abcabc".into()]);
        assert_eq!(secrets.settled("nothing at all"), 14);
        assert_eq!(secrets.settled("an oth"), 3);
        assert_eq!(secrets.settled("an other-value"), 14);
        // The end of the whole one may be the beginning of another.
        assert_eq!(secrets.settled("x abcabc"), 2);
        assert_eq!(secrets.settled("x abcabcd"), 9);
    }

    #[test]
    fn credentials_in_headers_and_addresses_are_found() {
        let mut found = Vec::new();
        in_header("Accept", "application/json", &mut found);
        in_header("Authorization", "Bearer abc-def", &mut found);
        in_header("X-Api-Key", "key-value", &mut found);
        in_url("https://me:pass-word@host/mcp?lang=english&apiKey=query-key#x", &mut found);
        assert_eq!(found, ["Bearer abc-def", "abc-def", "key-value", "pass-word", "query-key"]);
        assert_eq!(origin_of("https://me:pass@host:8/secret?x"), "https://host:8");
    }
}
