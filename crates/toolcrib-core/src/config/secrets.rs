//! Secret values: which values are secret, and how they are removed from all output.

mod forms;
mod learned;
mod redact;

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use self::{forms::Forms, learned::LearnedSecrets};
use crate::error::{Error, RemoteError, ServerError};

/// Secret values, hidden as `****` in everything that is printed or written.
///
/// A value is secret if it is an `api_key`, a credential in a header or an address, or a variable whose name says so:
/// it ends in `KEY`, `TOKEN`, `SECRET`, `PASSWORD`, `PASSWD`, `PASSPHRASE`, `PASS`, `AUTH`, `CREDENTIAL` or
/// `CREDENTIALS`. Any other value is secret if it came from a variable outside the inherited names or from an
/// `env_file`, unless it is a number or one word of letters of fewer than 16 characters. Values shorter than
/// [`Secrets::SHORTEST`] bytes are not searched for: they would turn ordinary text into stars. Of a value of several
/// lines each line is secret by itself.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Arc<[String]>,
    /// Texts that are searched for: the values, and each line of those of several.
    forms: Arc<Forms>,
    /// Values that became known later. Shared with all clones.
    learned: LearnedSecrets,
}

impl Secrets {
    /// Shortest value that is searched for, in bytes.
    pub const SHORTEST: usize = 6;

    /// Collects values; short and repeated ones are dropped.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let values: BTreeSet<String> = values.into_iter().filter(|v| v.len() >= Self::SHORTEST).collect();
        let lines = values.iter().flat_map(|value| value.lines()).map(str::trim);
        let lines = lines.filter(|line| line.len() >= Self::SHORTEST);
        let searched: BTreeSet<&str> = values.iter().map(String::as_str).chain(lines).collect();
        let forms = Arc::new(Forms::new(searched));
        Self { values: values.into_iter().collect(), forms, learned: LearnedSecrets::default() }
    }

    /// These and `more`: what was secret once stays secret.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        self.learn(more.learned.values());
        if self.knows(more) {
            return self.clone();
        }
        let all = Self::new(self.values.iter().chain(more.values.iter()).cloned());
        Self { learned: self.learned.clone(), ..all }
    }

    /// Whether there is nothing in `more` that is not secret already.
    #[doc(hidden)]
    pub fn knows(&self, more: &Self) -> bool {
        // In order, as they were collected.
        more.values.iter().all(|value| self.values.binary_search(value).is_ok())
    }

    /// Makes these values secret as well, from now on and for all clones: a token that a login gets.
    #[doc(hidden)]
    pub fn learn(&self, values: impl IntoIterator<Item = String>) {
        self.learned.add(values.into_iter().filter(|value| value.len() >= Self::SHORTEST));
    }

    /// Where secrets are in `text`.
    fn found(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = self.forms.found(text);
        found.extend(self.learned.forms().found(text));
        found
    }

    /// These and the secret parts of an address: a password before the host, and query parameters with telling names.
    #[must_use]
    pub fn and_of_url(&self, url: &str) -> Self {
        let mut found = Vec::new();
        in_url(url, &mut found);
        self.and(&Self::new(found))
    }

    /// `text` with every secret replaced by `****`, however its characters are written: plain, JSON-escaped or
    /// percent-encoded.
    pub fn hide(&self, text: &str) -> String {
        stars(text, self.found(text))
    }

    /// Hides every secret in a document, which stays one: in its texts, in names of fields, and in place of numbers
    /// that are one. A secret that is an ordinary word stays in names of fields, and where it is one of the words that
    /// toolcrib's own documents are read by (`"status": "passed"`).
    pub fn hide_in(&self, document: &mut Value) {
        match document {
            Value::String(text) if !self.found(text).is_empty() => *text = self.hide(text),
            Value::Number(number) => {
                // No text is made of each number of a document unless one may be secret.
                let numeric = |value: &&String| value.starts_with(|c: char| c == '-' || c.is_ascii_digit());
                let mut numbers = self.values.iter().filter(numeric).peekable();
                if numbers.peek().is_some() {
                    let text = number.to_string();
                    if numbers.any(|value| *value == text) {
                        *document = Value::String("****".to_owned());
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide_in(item)),
            Value::Object(fields) => self.hide_in_fields(fields),
            _ => {}
        }
    }

    fn hide_in_fields(&self, fields: &mut Map<String, Value>) {
        let extraordinary = |text: &str| {
            let mut found = self.found(text).into_iter();
            found.any(|place| !is_ordinary(&text[place]))
        };
        for (name, value) in fields.iter_mut() {
            let ours = KEYWORDS.contains(&name.as_str())
                && value.as_str().is_some_and(|word| is_keyword(word) && !extraordinary(word));
            if !ours {
                self.hide_in(value);
            }
        }
        if !fields.keys().any(|name| extraordinary(name)) {
            return;
        }
        for (name, value) in std::mem::take(fields) {
            let hidden = if extraordinary(&name) { self.hide(&name) } else { name };
            let mut free = hidden.clone();
            let mut number = 2;
            while fields.contains_key(&free) {
                free = format!("{hidden} ({number})");
                number += 1;
            }
            fields.insert(free, value);
        }
    }

    /// Hides every secret like [`Secrets::hide_in`] in the text of a document. Text that is no JSON is hidden as text.
    pub fn hide_json(&self, text: String) -> String {
        if self.found(&text).is_empty() {
            return text;
        }
        match serde_json::from_str(&text) {
            Ok(mut document) => {
                self.hide_in(&mut document);
                document.to_string()
            }
            Err(_) => self.hide(&text),
        }
    }

    /// Hides every secret in `error`. One whose other words hold any becomes [`Error::Remote`], which is words alone.
    pub fn hide_error(&self, error: &mut Error) {
        match error {
            Error::Server(failed) => return self.hide_failure(failed),
            Error::CallRefused { message, .. } => *message = self.hide(message),
            _ => {}
        }
        let told = RemoteError::from(&*error);
        let mut hidden = told.clone();
        let RemoteError { message, causes, stderr_tail, help, .. } = &mut hidden;
        self.hide_each(std::iter::once(message).chain(causes).chain(stderr_tail).chain(help));
        if hidden != told {
            *error = Error::Remote(Box::new(hidden));
        }
    }

    /// Hides what a server, or a library, had to say about a failure.
    #[doc(hidden)]
    pub fn hide_failure(&self, failed: &mut ServerError) {
        let ServerError { what, causes, stderr_tail, help, .. } = failed;
        self.hide_each(std::iter::once(what).chain(causes).chain(stderr_tail).chain(help));
    }

    /// Hides every secret in each of `texts`.
    #[doc(hidden)]
    pub fn hide_each<'a>(&self, texts: impl IntoIterator<Item = &'a mut String>) {
        texts.into_iter().for_each(|text| *text = self.hide(text));
    }

    /// Hides every secret like [`Secrets::hide`] in text that was cut at its end: the beginning of a secret is hidden there,
    /// too.
    pub fn hide_cut(&self, text: &str) -> String {
        // The cut may have gone through a character.
        let text = text.trim_end_matches('\u{fffd}');
        let mut found = self.found(text);
        found.extend(self.begun(text, 1));
        stars(text, found)
    }

    /// Returns the number of leading bytes of `text` that belong to no secret, however the text goes on.
    pub fn settled(&self, text: &str) -> usize {
        let begun = self.begun(text, 0).into_iter().map(|begun| begun.start);
        let mut settled = begun.min().unwrap_or(text.len());
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

    /// Where each secret may begin that goes on after the end of `text`, with at least `least` of its characters.
    fn begun(&self, text: &str, least: usize) -> Vec<Range<usize>> {
        let learned = self.learned.forms();
        let each = self.forms.each.iter().chain(&learned.each);
        each.filter_map(|form| form.begun(text, least)).collect()
    }
}

/// Fields of toolcrib's own documents whose values are words of closed lists.
const KEYWORDS: [&str; 12] = [
    "type", "event", "status", "state", "kind", "code", "phase", "reason", "role", "outcome", "stream",
    "server",
];

fn is_keyword(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

/// Whether a value is so common in texts that only the name of its variable can make a secret of it: a number, or one
/// word of letters, of fewer than 16 characters.
pub(super) fn is_ordinary(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    value.len() < 16
        && (value.bytes().all(|byte| byte.is_ascii_alphabetic())
            || digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
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
pub fn secret_name(name: &str) -> bool {
    const ENDINGS: [&str; 10] = [
        "KEY",
        "TOKEN",
        "SECRET",
        "PASSWORD",
        "PASSWD",
        "PASSPHRASE",
        "PASS",
        "AUTH",
        "CREDENTIAL",
        "CREDENTIALS",
    ];
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

/// The secret parts of an address: what stands before the host, also as `Authorization: Basic` has it, and parameters
/// with telling names.
pub(super) fn in_url(url: &str, found: &mut Vec<String>) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    if let Some((user, _)) = rest[..end].rsplit_once('@') {
        let (name, password) = user.split_once(':').unwrap_or((user, ""));
        // Some services take a token as the name.
        let secret = if password.is_empty() { name } else { password };
        let basic = BASE64_STANDARD.encode(format!("{}:{}", decoded(name), decoded(password)));
        found.extend([secret.to_owned(), decoded(secret), basic]);
    }
    let query = rest[end..].find(['?', '#']).map_or("", |at| &rest[end + at + 1..]);
    for (name, value) in query.split(['&', '?', '#']).filter_map(|pair| pair.split_once('=')) {
        if secret_name(name) || ["sig", "pwd"].contains(&name) {
            found.extend([value.to_owned(), decoded(value)]);
        }
    }
}

/// Scheme, host and port of an address: what can be shown without showing a secret.
pub fn origin_of(url: &str) -> String {
    // As an address is read: line breaks and tabs are left out, and `\` is a `/`.
    let url: String = url.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", &url));
    let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_plain_and_escaped() {
        let secrets =
            Secrets::new(["hunter2-long".into(), "hunter2".into(), "a\"quoted\"".into(), "tiny".into()]);
        assert_eq!(secrets.hide("hunter2-long hunter2 tiny"), "**** **** tiny");
        assert_eq!(secrets.hide(r#"{"v":"a\"quoted\""}"#), r#"{"v":"****"}"#);
        assert_eq!(format!("{secrets:?}"), "Secrets(3)");
        let known = Secrets::new(["hunter2".into()]);
        assert_eq!(secrets.and(&known).hide("a\"quoted\" hunter2-long"), "**** ****");
        assert_eq!(known.and(&secrets).hide("a\"quoted\" hunter2-long"), "**** ****");
    }

    #[test]
    fn the_minimum_length_of_secrets_is_as_documented() {
        let secrets = Secrets::new(["s".repeat(Secrets::SHORTEST), "t".repeat(Secrets::SHORTEST - 1)]);
        assert_eq!(secrets.hide("ssssss ttttt"), "**** ttttt");
        let documented = format!("fewer than {} bytes", Secrets::SHORTEST);
        for (file, text) in [
            ("servers.toml", include_str!("../../../../servers.toml")),
            ("docs/servers.md", include_str!("../../../../docs/servers.md")),
        ] {
            assert!(text.contains(&documented), "{file} does not say: {documented}");
        }
    }

    #[test]
    fn learned_secrets_are_hidden_by_all_clones() {
        let secrets = Secrets::new(["hunter2".into()]);
        let clone = secrets.and(&Secrets::new(["other-value".into()])).clone();
        secrets.learn(["access-1".to_owned(), "short".to_owned()]);
        assert_eq!(clone.hide("hunter2 access-1 other-value short"), "**** **** **** short");
        assert_eq!(clone.hide_cut("is acce"), "is ****");
        assert_eq!(clone.hide_json(r#"{"token":"access-1"}"#.to_owned()), r#"{"token":"****"}"#);
        assert_eq!(Secrets::default().and(&clone).hide("access-1"), "****");
        for number in 0..300 {
            secrets.learn([format!("token-{number}"), "in-use".to_owned()]);
        }
        assert_eq!(clone.hide("access-1 in-use token-299"), "access-1 **** ****", "the oldest give way");
    }

    #[test]
    fn overlapping_secrets_are_hidden_entirely() {
        let secrets = Secrets::new(["first-second".into(), "second-third".into(), "abcabcab".into()]);
        assert_eq!(secrets.hide("<first-second-third>"), "<****>");
        assert_eq!(secrets.hide("<abcabcabcab>"), "<****>");
        assert_eq!(secrets.hide("second-thirdfirst-second"), "********");
        assert_eq!(secrets.hide_cut("first-second-th"), "****");
    }

    #[test]
    fn multi_line_secrets_are_hidden_line_by_line() {
        let secrets =
            Secrets::new(["-----BEGIN-----\nMIIEvQ\u{e9}\"x\n  short\n".into(), "with space ".into()]);
        assert_eq!(secrets.hide("a MIIEvQ\u{e9}\"x b"), "a **** b");
        assert_eq!(secrets.hide(r#"{"key":"MIIEvQ\u00e9\"x"}"#), r#"{"key":"****"}"#);
        assert_eq!(secrets.hide(r#"["-----BEGIN-----\nMIIEvQ\u00e9\"x\n  short\n"]"#), r#"["****"]"#);
        assert_eq!(secrets.hide("with space, short"), "****, short");
    }

    #[test]
    fn a_secret_cut_at_the_end_of_text_is_hidden() {
        let secrets = Secrets::new(["a\"quoted\"-value".into(), "other-value".into()]);
        assert_eq!(secrets.hide_cut(r#"{"v":"a\"quo"#), r#"{"v":"****"#);
        assert_eq!(secrets.hide_cut("an other-value, oth"), "an ****, ****");
        assert_eq!(secrets.hide_cut("whole"), "whole");
    }

    #[test]
    fn streamed_text_is_held_back_where_a_secret_may_begin() {
        let secrets = Secrets::new(["other-value".into(), "abcabc".into()]);
        assert_eq!(secrets.settled("nothing at all"), 14);
        assert_eq!(secrets.settled("an oth"), 3);
        assert_eq!(secrets.settled("an other-value"), 14);
        // The end of the whole one may be the beginning of another.
        assert_eq!(secrets.settled("x abcabc"), 2);
        assert_eq!(secrets.settled("x abcabcd"), 9);
    }

    #[test]
    fn json_stays_valid_when_secrets_are_hidden() {
        let secrets = Secrets::new(["hunter2-x", "100000", "passed", "status"].map(str::to_owned));
        let hidden = |text: &str| secrets.hide_json(text.to_owned());
        assert_eq!(
            hidden(
                r#"{"status":"passed","size":100000,"ms":1000001,"hunter2-x":1,"a hunter2-x":"hunter2-x!"}"#
            ),
            r#"{"status":"passed","size":"****","ms":1000001,"****":1,"a ****":"****!"}"#
        );
        assert_eq!(
            hidden(r#"{"hunter2-x":1,"****":2,"text":"it passed"}"#),
            r#"{"****":1,"**** (2)":2,"text":"it ****"}"#
        );
        assert_eq!(
            hidden(r#"[{"type":"run_passed"},{"type":"passed by"}]"#),
            r#"[{"type":"run_passed"},{"type":"**** by"}]"#
        );
        assert_eq!(hidden("no JSON: hunter2-x"), "no JSON: ****");
        assert_eq!(hidden(r#"{"a":1.0}"#), r#"{"a":1.0}"#);
    }

    #[test]
    fn short_numbers_and_words_are_not_secret() {
        for value in ["100000", "-3.5", "production", "Status", ""] {
            assert!(is_ordinary(value), "{value}");
        }
        for value in ["hunter2", "1234567890123456", "abcdefghijklmnop", "us-east-1", "a b", "12:30"] {
            assert!(!is_ordinary(value), "{value}");
        }
    }

    #[test]
    fn errors_lose_only_their_secrets() {
        let secrets = Secrets::new(["hunter2-x".to_owned()]);
        let source = std::io::Error::other("hunter2-x");
        let mut error = Error::Io { what: "cannot read".to_owned(), source };
        secrets.hide_error(&mut error);
        assert_eq!((error.to_string(), error.causes()), ("cannot read".to_owned(), vec!["****".to_owned()]));
        let mut error = Error::Cancelled;
        secrets.hide_error(&mut error);
        assert!(matches!(error, Error::Cancelled), "{error}");
    }

    #[test]
    fn secrets_are_found_inside_urls() {
        let secrets = Secrets::new(["p@ss w/rd!".to_owned()]);
        assert_eq!(secrets.hide("p%40ss%20w%2Frd%21 p%40ss%20w%2Frd! p@ss w/rd!"), "**** **** ****");
        assert_eq!(secrets.hide("a=p%40ss+w%2Frd%21&b"), "a=****&b");
        let tilde = Secrets::new(["one two*~".to_owned()]);
        assert_eq!(tilde.hide("one+two*%7E one+two%2A~"), "**** ****");
    }

    #[test]
    fn secrets_are_found_in_nested_json_text() {
        let secret = "sk-Zq8\"w\\9=\u{e9}&7";
        let secrets = Secrets::new([secret.to_owned()]);
        type Write = fn(&str) -> String;
        let ascii: Write = |text| Value::from(text).to_string().replace('\u{e9}', "\\u00e9");
        let plain: Write = |text| Value::from(text).to_string();
        for writers in
            [[plain, plain, plain], [ascii, plain, plain], [ascii, ascii, ascii], [plain, ascii, plain]]
        {
            let mut text = secret.to_owned();
            let mut hidden = "****".to_owned();
            for write in writers {
                (text, hidden) = (write(&text), write(&hidden));
                assert_eq!(secrets.hide(&text), hidden);
            }
        }
    }

    #[test]
    fn credentials_in_headers_and_urls_are_found() {
        let mut found = Vec::new();
        in_header("Accept", "application/json", &mut found);
        in_header("Authorization", "Bearer abc-def", &mut found);
        in_header("X-Api-Key", "key-value", &mut found);
        assert_eq!(found, ["Bearer abc-def", "abc-def", "key-value"]);
        let of = |url: &str| {
            let mut found = Vec::new();
            in_url(url, &mut found);
            found.dedup();
            found
        };
        let basic = |text: &str| BASE64_STANDARD.encode(text);
        assert_eq!(
            of("https://me:pass-word@host/mcp?lang=english&apiKey=query-key#x"),
            ["pass-word", &basic("me:pass-word"), "query-key"]
        );
        assert_eq!(of("https://ghp-abc:@host"), ["ghp-abc", &basic("ghp-abc:")]);
        assert_eq!(
            of("https://me:a%40b-cd@host#access_token=t-1"),
            ["a%40b-cd", "a@b-cd", &basic("me:a@b-cd"), "t-1"]
        );
        assert_eq!(of("https://host/a@b?c=d@e"), [""; 0]);
        assert_eq!(origin_of("https://me:pass@host:8/secret?x"), "https://host:8");
    }
}
