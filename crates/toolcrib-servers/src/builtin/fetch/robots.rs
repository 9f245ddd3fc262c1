//! Parses `robots.txt` by RFC 9309, with the common extension `Crawl-delay`.

use std::time::Duration;

use url::Url;

/// The name that sites know us by.
pub(super) const AGENT: &str = "toolcrib";
/// Bytes of the file that are read, which is the least that the standard demands.
pub(super) const MAX_SIZE: usize = 500 << 10;

/// The part of a site's rules that is for us.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Rules {
    /// Whether paths like the pattern may be visited.
    paths: Vec<(bool, String)>,
    /// The time between two visits that the site asks for.
    pub delay: Option<Duration>,
}

impl Rules {
    /// The rules for our name; if there are none, those for all programs.
    pub(super) fn parse(text: &str) -> Self {
        let (mut ours, mut everybody) = (None::<Self>, Self::default());
        // Agents that the group at hand is for, and whether its rules have begun.
        let (mut for_us, mut for_all, mut begun) = (false, false, false);
        for line in text.trim_start_matches('\u{feff}').lines() {
            let line = line.split('#').next().unwrap_or_default();
            let Some((key, value)) = line.split_once(':') else { continue };
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
            if key == "user-agent" {
                if begun {
                    (for_us, for_all, begun) = (false, false, false);
                }
                let named = |c: char| c.is_ascii_alphabetic() || matches!(c, '-' | '_');
                let name = value.split(|c| !named(c)).next().unwrap_or_default();
                for_us |= name.eq_ignore_ascii_case(AGENT);
                for_all |= value == "*";
                if for_us {
                    ours.get_or_insert_default();
                }
                continue;
            }
            let rule = match key.as_str() {
                "allow" => Rule::Path(true),
                "disallow" => Rule::Path(false),
                "crawl-delay" => Rule::Delay,
                // Not a part of any group.
                _ => continue,
            };
            begun = true;
            if for_us {
                rule.add(value, ours.get_or_insert_default());
            }
            if for_all {
                rule.add(value, &mut everybody);
            }
        }
        ours.unwrap_or(everybody)
    }

    /// Whether the page may be visited: the longest pattern decides, and of two as long the one that allows.
    pub(super) fn allow(&self, url: &Url) -> bool {
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path = canonical(&format!("{}{query}", url.path()));
        let fitting = self.paths.iter().filter(|(_, pattern)| fits(pattern, &path));
        fitting.map(|(allowed, pattern)| (pattern.len(), *allowed)).max().is_none_or(|(_, allowed)| allowed)
    }
}

enum Rule {
    Path(bool),
    Delay,
}

impl Rule {
    fn add(&self, value: &str, rules: &mut Rules) {
        match self {
            // "Disallow:" alone forbids nothing.
            Self::Path(_) if value.is_empty() => {}
            Self::Path(allowed) => rules.paths.push((*allowed, canonical(value))),
            Self::Delay => {
                let seconds =
                    value.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                rules.delay = rules.delay.max(seconds);
            }
        }
    }
}

/// One way of writing for every path: letters and digits plain, all else that is encoded in capital letters.
fn canonical(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    let bytes = path.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        let byte = code.unwrap_or(bytes[at]);
        let plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        match code.is_none() && byte.is_ascii() || plain {
            true => text.push(char::from(byte)),
            false => text.push_str(&format!("%{byte:02X}")),
        }
        at += if code.is_some() { 3 } else { 1 };
    }
    text
}

/// Whether `path` begins like `pattern`, where `*` is any text and `$` at its end is the end of the path.
fn fits(pattern: &str, path: &str) -> bool {
    let (pattern, anchored) = match pattern.strip_suffix('$') {
        Some(pattern) => (pattern, true),
        None => (pattern, false),
    };
    let mut parts = pattern.split('*');
    let Some(mut rest) = path.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        if anchored && parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    !anchored || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(robots: &str, path: &str) -> bool {
        Rules::parse(robots).allow(&Url::parse(&format!("https://a.example{path}")).unwrap())
    }

    #[test]
    fn the_longest_pattern_decides() {
        let robots =
            "User-agent: *\nDisallow: /a\nAllow: /a/b\nDisallow: /*.gif$\nDisallow: /q?*x=1 # not this\n";
        for (path, may) in [
            ("/", true),
            ("/a", false),
            ("/abc", false),
            ("/a/b/c", true),
            ("/x.gif", false),
            ("/x.gif?y", true),
            ("/x/y.gif.png", true),
            ("/q?a=2&x=1", false),
            ("/q?a=2", true),
        ] {
            assert_eq!(allowed(robots, path), may, "{path}");
        }
        assert!(allowed("User-agent: *\nDisallow: /a\nAllow: /a", "/a"), "a tie allows");
        assert!(allowed("User-agent: *\nDisallow:", "/a"));
        assert!(allowed("", "/a"));
        assert!(!allowed("User-agent: *\nDisallow: /", "/a"));
    }

    #[test]
    fn rules_for_our_name_precede_those_for_all() {
        let robots = "\u{feff}user-agent: other\nUser-Agent: ToolCrib/1.0\nDISALLOW: /ours\n\n\
            User-agent: *\nDisallow: /\nSitemap: https://a.example/s.xml\nUser-agent: toolcrib\nCrawl-delay: 2.5\n";
        assert!(!allowed(robots, "/ours") && allowed(robots, "/theirs"));
        assert_eq!(Rules::parse(robots).delay, Some(Duration::from_millis(2500)));
        let silent = "User-agent: *\nDisallow: /\nUser-agent: toolcrib\nAllow: /\n";
        assert!(allowed(silent, "/x"));
        assert!(allowed("Disallow: /", "/x"), "a rule of nobody");
        assert!(!allowed("User-agent: toolcribber\nAllow: /\n\nUser-agent: *\nDisallow: /", "/x"));
    }

    #[test]
    fn percent_codes_and_letters_are_the_same_path() {
        assert!(!allowed("User-agent: *\nDisallow: /k%c3%b6ln", "/köln"));
        assert!(!allowed("User-agent: *\nDisallow: /köln", "/K%C3%B6ln".replace('K', "k").as_str()));
        assert!(!allowed("User-agent: *\nDisallow: /%7Eme", "/~me"));
        assert!(allowed("User-agent: *\nDisallow: /a%2Fb", "/a/b"));
    }

    #[test]
    fn wildcards_and_end_marks_are_not_literal() {
        for (pattern, path, fit) in [
            ("/*", "/x", true),
            ("/*$", "/x", true),
            ("/a*b$", "/axb", true),
            ("/a*b$", "/axbc", false),
            ("/a*b*c", "/a1b2c3", true),
            ("/a*bc$", "/abc", true),
            ("/a$", "/a", true),
            ("/a$", "/ab", false),
            ("*", "/", true),
        ] {
            assert_eq!(fits(pattern, path), fit, "{pattern} {path}");
        }
    }
}
