//! JSON-RPC messages as they were written: objects whose members are not decoded, so that nothing is lost on the way.

use std::borrow::Cow;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// A JSON object with its members in their order, each as it was written.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RawObject(IndexMap<String, Box<RawValue>>);

impl RawObject {
    /// The object in `raw`; an empty one for what is missing or `null`.
    ///
    /// # Errors
    /// It is not an object.
    pub(crate) fn parse(raw: Option<&RawValue>) -> serde_json::Result<Self> {
        match raw.map(RawValue::get) {
            None | Some("null") => Ok(Self::default()),
            Some(text) => serde_json::from_str(text),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.get(name).map(|raw| &**raw)
    }

    /// A member, decoded. `None`: it is missing, or of another type.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self, name: &str) -> Option<T> {
        serde_json::from_str(self.get(name)?.get()).ok()
    }

    /// Takes a member out. The others keep their order.
    pub(crate) fn take(&mut self, name: &str) -> Option<Box<RawValue>> {
        self.0.shift_remove(name)
    }

    /// Sets a member: in its old place, or behind the others.
    pub(crate) fn set(&mut self, name: &str, value: Box<RawValue>) {
        self.0.insert(name.to_owned(), value);
    }

    /// As [`RawObject::set`], of any value.
    pub(crate) fn write(&mut self, name: &str, value: &impl Serialize) {
        self.set(name, raw(value));
    }

    /// Sets those members that are not there yet.
    pub(crate) fn fill(&mut self, others: &Self) {
        for (name, value) in &others.0 {
            if !self.0.contains_key(name) {
                self.0.insert(name.clone(), value.clone());
            }
        }
    }

    /// The names of the members.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn into_raw(self) -> Box<RawValue> {
        raw(&self.0)
    }
}

/// Any value as it is written. What JSON cannot write (it has no such values here) is `null`.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// The parts of a message that tell what it is.
#[derive(Debug, Deserialize)]
pub(crate) struct Envelope<'a> {
    #[serde(borrow, default)]
    pub(crate) jsonrpc: Cow<'a, str>,
    #[serde(borrow)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) params: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(crate) error: Option<&'a RawValue>,
}

/// Longest id of a request of the other side's, as it is written: it is written back.
pub(crate) const MAX_ID: usize = 256;

/// Whether a request may have this id: a number, a string or `null`, of bearable length.
pub(crate) fn is_usable_id(id: &RawValue) -> bool {
    id.get().len() <= MAX_ID && !id.get().starts_with(['{', '['])
}
