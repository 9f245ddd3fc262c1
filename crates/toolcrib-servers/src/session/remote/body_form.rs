//! Tells the form of a body by its first bytes rather than by its declared content type.

use super::http::{EVENTS, JSON};

pub(super) const BOM: &[u8] = "\u{feff}".as_bytes();

/// Form of a body.
pub(super) enum BodyForm {
    Json,
    Events,
    /// A page, say.
    Other,
}

impl BodyForm {
    /// Tells the form by the first bytes, and by the declared type if these do not tell.
    pub(super) fn of(first: &[u8], kind: Option<&str>) -> Self {
        Self::shown(first).unwrap_or(match kind {
            Some(EVENTS) => Self::Events,
            Some(JSON) | None => Self::Json,
            Some(_) => Self::Other,
        })
    }

    /// Tells the form by the first bytes alone.
    pub(super) fn shown(first: &[u8]) -> Option<Self> {
        let first = first.strip_prefix(BOM).unwrap_or(first).trim_ascii_start();
        let is_field = |field: &&[u8]| first.starts_with(field);
        match first {
            [b'{' | b'[', ..] => Some(Self::Json),
            [b'<', ..] => Some(Self::Other),
            _ if [&b"data:"[..], b"event:", b"id:", b"retry:", b":"].iter().any(is_field) => {
                Some(Self::Events)
            }
            _ => None,
        }
    }
}
