//! A pattern over names, as the configuration writes it.

use globset::{Glob, GlobMatcher};

use crate::error::{Error, Result};

/// A glob pattern over the names of tools, agents or variables: `read_*`, `{get,list}_?`.
///
/// ```
/// # use toolcrib_core as toolcrib;
/// # fn main() -> toolcrib::Result<()> {
/// let pattern = toolcrib::config::NamePattern::new("read_*")?;
/// assert!(pattern.is_match("read_file") && !pattern.is_match("write_file"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct NamePattern(GlobMatcher);

impl NamePattern {
    /// The pattern that `text` is.
    ///
    /// # Errors
    /// [`Error::Input`] if it is none.
    pub fn new(text: &str) -> Result<Self> {
        Self::parse(text).map_err(|error| Error::input(format!("not a pattern: `{text}`: {error}"), None))
    }

    /// The pattern that `text` is, or what is wrong with it.
    #[doc(hidden)]
    pub fn parse(text: &str) -> Result<Self, globset::ErrorKind> {
        match Glob::new(text) {
            Ok(glob) => Ok(Self(glob.compile_matcher())),
            Err(error) => Err(error.kind().clone()),
        }
    }

    /// Whether it matches the whole of `name`.
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        self.0.glob().glob()
    }
}

/// Compares the texts as they were written.
impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}
