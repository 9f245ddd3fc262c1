//! Secret values: which ones they are, and how they are kept out of everything that is printed.

use std::sync::Arc;

/// Secret values, hidden as `****` in everything that is printed or written.
///
/// A value is secret if it came from a variable outside the inherited names, from an `env_file` or from
/// `api_key`, if it is a credential in a header or an address, or if its name ends in `KEY`, `TOKEN`,
/// `SECRET`, `PASSWORD` or `CREDENTIALS`. Values shorter than [`Secrets::SHORTEST`] bytes are not searched
/// for: they would turn ordinary text into stars.
#[derive(Clone, Default)]
pub struct Secrets {
    values: Arc<[String]>,
}

impl Secrets {
    /// Shortest value that is searched for, in bytes.
    pub const SHORTEST: usize = 6;

    /// Collects values; short and repeated ones are dropped.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut values: Vec<String> = values.into_iter().filter(|v| v.len() >= Self::SHORTEST).collect();
        // Longest first, so that a secret that contains another one is hidden whole.
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Self { values: values.into() }
    }

    /// These and `more`: what was secret once stays secret.
    #[must_use]
    pub fn and(&self, more: &Self) -> Self {
        Self::new(self.values.iter().chain(more.values.iter()).cloned())
    }

    /// `text` with every secret replaced by `****`, in plain and in JSON-escaped form.
    pub fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for value in self.values.iter() {
            if hidden.contains(value.as_str()) {
                hidden = hidden.replace(value.as_str(), "****");
            }
            let quoted = serde_json::Value::from(value.as_str()).to_string();
            let escaped = &quoted[1..quoted.len() - 1];
            if escaped != value && hidden.contains(escaped) {
                hidden = hidden.replace(escaped, "****");
            }
        }
        hidden
    }

    /// As [`Secrets::hide`], for text that was cut at its end: the beginning of a secret is hidden there, too.
    pub fn hide_cut(&self, text: &str) -> String {
        // The cut may have gone through a character.
        let mut hidden = self.hide(text.trim_end_matches('\u{fffd}'));
        let begun = |value: &String| {
            let ends = value.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|end| hidden.ends_with(&value[..*end])).max()
        };
        if let Some(length) = self.values.iter().filter_map(begun).max() {
            hidden.truncate(hidden.len() - length);
            hidden.push_str("****");
        }
        hidden
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secrets({})", self.values.len())
    }
}

/// Whether a variable, header or query parameter of this name holds a secret by its name alone.
pub(super) fn secret_name(name: &str) -> bool {
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
