//! The offer of a server as hashes, so that two starts can be compared and nothing that it said is stored.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::text::{counted, cut, short_hex};

/// Tools that are told apart. Of more there is one hash of all.
const MAX_TOOLS: usize = 1000;
/// Bytes of a name in words.
const SHOWN: usize = 100;

/// Hashes of everything that a server offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    protocol: String,
    software: String,
    /// The name that it gives itself. Not stored.
    #[serde(skip)]
    named: String,
    count: usize,
    all: String,
    tools: Vec<ToolPrint>,
}

/// Hashes of one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolPrint {
    /// Name for messages. Not stored.
    #[serde(skip)]
    shown: String,
    name: String,
    description: String,
    rest: String,
}

/// Difference between the offers of a fork and of an ordinary start, in words for a person. It may contain names that the
/// server gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference(String);

impl Difference {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl ToolPrint {
    /// `rest` is all of it but name and description: its schemas above all.
    pub fn new(name: &str, description: Option<&str>, rest: &impl Serialize) -> Self {
        let rest = serde_json::to_vec(rest).unwrap_or_default();
        Self {
            shown: cut(name, SHOWN),
            name: hash([name.as_bytes()]),
            // None is not the same as an empty one.
            description: hash(description.map(str::as_bytes)),
            rest: hash([rest.as_slice()]),
        }
    }
}

impl Fingerprint {
    /// The revision of the protocol, what the server calls itself (name and version), and its tools in its order.
    pub fn new(protocol: &str, (name, version): (&str, &str), mut tools: Vec<ToolPrint>) -> Self {
        let of_tools = tools.iter().flat_map(|tool| [&tool.name, &tool.description, &tool.rest]);
        let all = hash(of_tools.map(String::as_bytes));
        let count = tools.len();
        if count > MAX_TOOLS {
            tools.clear();
        }
        Self {
            protocol: cut(protocol, SHOWN),
            software: hash([name.as_bytes(), version.as_bytes()]),
            named: cut(format!("{name} {version}").trim(), SHOWN),
            count,
            all,
            tools,
        }
    }

    /// How `seen` differs from this one, in the first thing that does. A client may choose the revision of the protocol, and a server
    /// may say the same in other words in each: of two revisions only the names of the tools are compared.
    pub fn difference(&self, seen: &Self) -> Option<Difference> {
        let is_comparable = self.protocol == seen.protocol;
        let words = if self.count != seen.count {
            format!("it lists {} in place of {}", counted(seen.count, "tool"), self.count)
        } else if !is_comparable && self.names().eq(seen.names()) {
            return None;
        } else if is_comparable && self.software != seen.software {
            format!("it calls itself `{}`, and something else before", seen.named)
        } else if self.all != seen.all {
            self.tools_differ(seen)
        } else {
            return None;
        };
        Some(Difference(words))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| &*tool.name)
    }

    fn tools_differ(&self, seen: &Self) -> String {
        let new = seen.tools.iter().find(|tool| !self.tools.iter().any(|known| known.name == tool.name));
        if let Some(new) = new {
            return format!("it lists the tool `{}`, which it did not before", new.shown);
        }
        let mut pairs = self.tools.iter().zip(&seen.tools);
        match pairs.find(|(before, now)| !before.is_same(now)) {
            Some((before, now)) if before.name != now.name => {
                format!("it lists its tools in another order, `{}` too early or too late", now.shown)
            }
            Some((before, now)) if before.description != now.description => {
                format!("its tool `{}` has another description", now.shown)
            }
            Some((_, now)) => format!("its tool `{}` has another schema", now.shown),
            None => "its tools are not the same".to_owned(),
        }
    }
}

impl ToolPrint {
    fn is_same(&self, other: &Self) -> bool {
        (&self.name, &self.description, &self.rest) == (&other.name, &other.description, &other.rest)
    }
}

fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    short_hex(hash)
}
