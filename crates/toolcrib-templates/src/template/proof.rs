//! Knowledge about servers that could be forked: none, the offer of an ordinary start, a proof that a fork offers the same, a
//! proof that it does not, or that this cannot be told.
//!
//! There is one record for each version of a package and command line, in `template` below the cache folder. It has hashes of what a
//! server said, and none of its words.

mod fingerprint;
mod identity;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

pub(super) use self::fingerprint::Difference;
pub use self::fingerprint::{Fingerprint, ToolPrint};
pub(super) use self::identity::{Identities, Identity};
use super::{cut_bytes, python::Entry};
use crate::{config::Secrets, record_folder::RecordFolder};

/// Version of the form of records.
const SCHEMA: u32 = 1;
/// Records that are older are removed: packages change, and what is still in use is soon known again.
const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// How long it is remembered what the start of a template takes: if that was too long, nobody measures it again.
const READY_KEPT: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of a reason.
const MAX_REASON: usize = 500;
/// Modules that a template is started without.
const MAX_AVOID: usize = 500;
/// Programs with a template of their own.
const MAX_PARTIAL: usize = 100;
/// A server whose starts differed is looked at again after so long.
const VARIES: Duration = Duration::from_secs(24 * 60 * 60);

/// Knowledge about one server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Proof {
    /// Nothing is known: its next start is an ordinary one.
    #[default]
    Unknown,
    /// Nothing here, and a fork has offered something else than servers of its package version in other folders: its next start is
    /// an ordinary one.
    Own,
    /// Nothing here. In another folder a fork of the same package version, with the same arguments and environment, has offered
    /// this, as an ordinary start there. The next start may be a fork, and is compared. Never stored.
    #[serde(skip)]
    Borrowed(Fingerprint),
    /// The offer of an ordinary start. The next start may be a fork, and is compared.
    Baseline(Fingerprint),
    /// A fork has offered the same.
    Proven(Fingerprint),
    /// A fork has offered something else. The next start is an ordinary one, and decides whether that was because of the fork.
    Doubtful {
        /// The offer of an ordinary start.
        before: Fingerprint,
        /// The offer of the fork.
        forked: Fingerprint,
        /// Another fork had offered the same as an ordinary start.
        proven: bool,
        /// How they differ, without secrets.
        reason: String,
    },
    /// Its ordinary starts differ, so that a fork cannot be compared with one.
    Varies {
        /// How they differ, without secrets.
        reason: String,
        /// Time of this conclusion, in seconds since 1970.
        when: u64,
    },
    /// Like `Proven`, but the server ends in its first seconds, forked or not.
    Fragile(Fingerprint),
    /// It is not forked.
    Off {
        /// Why, without secrets.
        reason: String,
        /// Time of this conclusion, in seconds since 1970.
        when: u64,
        /// The fork that ended in its first seconds, if that is the reason.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Ended>,
    },
}

/// The early end of a fork.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// Description of the end.
    how: String,
    /// The offer of ordinary starts that the fork was to match.
    before: Fingerprint,
}

/// Conclusion about forks from an ordinary start, or from the early end of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No conclusion.
    Nothing,
    /// A fork was not the same: it is not forked any more.
    Off(String),
    /// Its starts differ: it is not forked for a while.
    Varies(String),
}

/// Facts about a template that are kept for later ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Time from its start until it could be forked.
    pub(super) ready: Option<Duration>,
    /// Modules that it cannot import.
    pub(super) avoid: Vec<String>,
    /// Hash of the files that it has imported, once it was compared with another import. Empty before.
    pub(super) proven: String,
    /// Programs that import more than it has, because others do not.
    pub(super) partial: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ProofRecord {
    schema: u32,
    /// The package or script.
    of: String,
    proof: Proof,
}

#[derive(Debug, Serialize, Deserialize)]
struct MemoryRecord {
    schema: u32,
    ready_ms: Option<u64>,
    /// Seconds since 1970.
    #[serde(default)]
    measured: u64,
    avoid: Vec<String>,
    #[serde(default)]
    proven: String,
    #[serde(default)]
    partial: Vec<Entry>,
}

/// Where proofs are kept: in a folder, else in memory. A cheap handle.
#[derive(Debug, Clone, Default)]
pub(super) struct Proofs {
    records: Option<RecordFolder>,
    memory: Arc<Mutex<BTreeMap<String, Proof>>>,
}

impl Proof {
    /// Whether a fork may be tried.
    pub(super) fn permits(&self) -> bool {
        matches!(self, Self::Borrowed(_) | Self::Baseline(_) | Self::Proven(_) | Self::Fragile(_))
    }

    /// Whether nothing is known that would keep it from being forked once it has had an ordinary start.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Unknown | Self::Own) || self.permits()
    }

    pub(super) fn off(reason: &str) -> Self {
        Self::Off { reason: short(reason), when: now(), ended: None }
    }

    /// The next state after an ordinary start that offered `seen`, and the verdict. `None`: the state stays.
    pub(super) fn after_ordinary(&self, seen: Fingerprint) -> (Option<Self>, Verdict) {
        let differs = |before: &Fingerprint| before.difference(&seen).is_some();
        match self {
            Self::Unknown | Self::Own | Self::Borrowed(_) => (Some(Self::Baseline(seen)), Verdict::Nothing),
            // What it offers has changed since, without a fork.
            Self::Baseline(before) | Self::Proven(before) | Self::Fragile(before) if differs(before) => {
                (Some(Self::Baseline(seen)), Verdict::Nothing)
            }
            Self::Doubtful { before, reason, .. } if !differs(before) => {
                (Some(Self::off(reason)), Verdict::Off(reason.clone()))
            }
            // As a fork did, after others that had not.
            Self::Doubtful { forked, proven: true, .. } if !differs(forked) => {
                (Some(Self::Baseline(seen)), Verdict::Nothing)
            }
            Self::Doubtful { reason, .. } => {
                let varies = Self::Varies { reason: reason.clone(), when: now() };
                (Some(varies), Verdict::Varies(reason.clone()))
            }
            Self::Varies { when, .. } if now().saturating_sub(*when) >= VARIES.as_secs() => {
                (Some(Self::Baseline(seen)), Verdict::Nothing)
            }
            Self::Baseline(_)
            | Self::Proven(_)
            | Self::Fragile(_)
            | Self::Varies { .. }
            | Self::Off { .. } => (None, Verdict::Nothing),
        }
    }

    /// The next state after a server ended in its first seconds, and the verdict. `how` describes the end in short, `reason` in
    /// full. `None`: the state stays.
    pub(super) fn after_early_end(&self, forked: bool, how: &str, reason: &str) -> (Option<Self>, Verdict) {
        match self {
            Self::Borrowed(before) | Self::Baseline(before) | Self::Proven(before) if forked => {
                let (reason, before) = (short(reason), before.clone());
                let ended = Some(Ended { how: short(how), before });
                (Some(Self::Off { reason: reason.clone(), when: now(), ended }), Verdict::Off(reason))
            }
            // Not because of the fork, as it seems.
            Self::Off { ended: Some(ended), .. } if !forked && short(how) == ended.how => {
                (Some(Self::Fragile(ended.before.clone())), Verdict::Nothing)
            }
            _ => (None, Verdict::Nothing),
        }
    }

    /// The next state after a fork that offered `seen`, and the difference to the expected offer. `None`: the state stays.
    pub(super) fn after_fork(&self, seen: &Fingerprint) -> (Option<Self>, Option<Difference>) {
        let (Self::Borrowed(before) | Self::Baseline(before) | Self::Proven(before) | Self::Fragile(before)) =
            self
        else {
            return (None, None);
        };
        let proven = !matches!(self, Self::Baseline(_) | Self::Borrowed(_));
        match before.difference(seen) {
            None if proven => (None, None),
            None => (Some(Self::Proven(before.clone())), None),
            // Perhaps it offers something else in this folder, forked or not.
            Some(difference) if matches!(self, Self::Borrowed(_)) => (Some(Self::Own), Some(difference)),
            // Perhaps any start would offer something else by now.
            Some(difference) => {
                let (before, forked, reason) = (before.clone(), seen.clone(), short(difference.as_str()));
                (Some(Self::Doubtful { before, forked, proven, reason }), Some(difference))
            }
        }
    }

    /// Hides `secrets` in its reason.
    pub(super) fn without(mut self, secrets: &Secrets) -> Self {
        if let Self::Doubtful { reason, .. } | Self::Varies { reason, .. } | Self::Off { reason, .. } =
            &mut self
        {
            *reason = secrets.hide(reason);
        }
        self
    }
}

fn short(reason: &str) -> String {
    cut_bytes(reason, MAX_REASON).to_owned()
}

/// The present time in seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Proofs {
    /// Keeps them in `template` below `cache`. Without a folder they are known until the end of this value.
    pub(super) fn new(cache: Option<&Path>) -> Self {
        let records = cache.map(|cache| RecordFolder::new(cache.join("template")));
        Self { records, memory: Arc::default() }
    }

    /// Reads a file or two.
    pub(super) fn of(&self, identity: &Identity) -> Proof {
        let elsewhere = || match self.at(identity.shared.as_ref()?)? {
            Proof::Proven(seen) => Some(Proof::Borrowed(seen)),
            _ => None,
        };
        self.at(&identity.key).or_else(elsewhere).unwrap_or_default()
    }

    /// Writes a file or two: what a fork has proven holds for other folders, and what speaks against forks ends that. A file that
    /// cannot be written is as good as unknown.
    pub(super) fn set(&self, identity: &Identity, proof: Proof) {
        let elsewhere = match &proof {
            Proof::Proven(_) => Some(proof.clone()),
            Proof::Off { .. } | Proof::Doubtful { .. } | Proof::Varies { .. } => Some(Proof::Unknown),
            _ => None,
        };
        if let Some((shared, elsewhere)) = identity.shared.as_ref().zip(elsewhere) {
            self.put(shared, &identity.words, elsewhere);
        }
        self.put(&identity.key, &identity.words, proof);
        if let Some(records) = &self.records {
            records.remove_older(MAX_AGE);
        }
    }

    fn at(&self, key: &str) -> Option<Proof> {
        match &self.records {
            Some(records) => {
                let record = records.load::<ProofRecord>(key).filter(|record| record.schema == SCHEMA);
                record.map(|record| record.proof)
            }
            None => self.memory().get(key).cloned(),
        }
    }

    fn put(&self, key: &str, words: &str, proof: Proof) {
        match &self.records {
            None if proof == Proof::Unknown => drop(self.memory().remove(key)),
            None => drop(self.memory().insert(key.to_owned(), proof)),
            Some(records) if proof == Proof::Unknown => records.remove(key),
            Some(records) => {
                let record = ProofRecord { schema: SCHEMA, of: words.to_owned(), proof };
                if let Err(error) = records.save(key, &record) {
                    tracing::debug!(of = %words, %error, "what is known of its forks could not be saved");
                }
            }
        }
    }

    /// The stored facts about the template with this key. Reads a file.
    pub(super) fn memory_of(&self, key: &str) -> Memory {
        let record =
            self.records.as_ref().and_then(|records| records.load::<MemoryRecord>(&of_template(key)));
        let record = record.filter(|record| record.schema == SCHEMA && record.avoid.len() <= MAX_AVOID);
        let Some(MemoryRecord { ready_ms, measured, avoid, proven, partial, .. }) = record else {
            return Memory::default();
        };
        let is_old = now().abs_diff(measured) > READY_KEPT.as_secs();
        Memory { ready: ready_ms.filter(|_| !is_old).map(Duration::from_millis), avoid, proven, partial }
    }

    /// Writes a file.
    pub(super) fn remember(&self, key: &str, memory: Memory) {
        let Some(records) = &self.records else { return };
        let ready_ms = memory.ready.map(|ready| u64::try_from(ready.as_millis()).unwrap_or(u64::MAX));
        let Memory { mut avoid, proven, mut partial, ready: _ } = memory;
        avoid.truncate(MAX_AVOID);
        partial.truncate(MAX_PARTIAL);
        let record = MemoryRecord { schema: SCHEMA, ready_ms, measured: now(), avoid, proven, partial };
        // It is only a help.
        let _ = records.save(&of_template(key), &record);
    }

    /// Where what is known of the server is kept. `None`: in memory.
    pub(super) fn file(&self, identity: &Identity) -> Option<PathBuf> {
        Some(self.records.as_ref()?.file(&identity.key))
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Proof>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of_template(key: &str) -> String {
    format!("template-{key}")
}

/// Entry of the fuzz target `records`: reads stored facts about forks.
pub fn fuzz(bytes: &[u8]) {
    let _ = serde_json::from_slice::<MemoryRecord>(bytes);
    if let Ok(record) = serde_json::from_slice::<ProofRecord>(bytes) {
        let seen = Fingerprint::new("2025-06-18", ("name", "1"), Vec::new());
        let _ = (record.proof.after_fork(&seen), record.proof.after_early_end(true, "x", "y"));
        let _ = record.proof.after_ordinary(seen);
    }
}

#[cfg(test)]
mod tests;
