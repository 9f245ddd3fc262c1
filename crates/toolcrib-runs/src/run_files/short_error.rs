//! Errors as events have them.

use serde::{Deserialize, Serialize};

/// An error in a few words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ShortError {
    /// A stable code, or the class of a failed model request.
    pub code: String,
    /// Description of the error, cut at 500 bytes.
    pub message: String,
}

impl ShortError {
    /// Longest message in bytes.
    const LONGEST: usize = 500;

    /// An error of that code. Only an [`EventLog`](super::EventLog) makes one: nothing may be cut before secrets are hidden, since the
    /// part of one that is left would not be known as secret any more.
    pub(super) fn new(code: &(impl ToString + ?Sized), message: &str) -> Self {
        let mut end = message.len().min(Self::LONGEST);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        Self { code: code.to_string(), message: message[..end].to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_between_characters() {
        let length = |text: &str| ShortError::new("x", text).message.len();
        assert_eq!([length(&"ä".repeat(400)), length(&format!("a{}", "ä".repeat(400)))], [500, 499]);
    }
}
