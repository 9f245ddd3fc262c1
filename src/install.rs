//! Entries for toolcrib in the configuration files of MCP clients ([`McpClient`]): written, shown and removed.
//!
//! Other parts of a file stay as they are, with their comments and their format. A file that cannot be read is not changed. The
//! file before a change is kept beside it.
//!
//! # Example
//! ```no_run
//! use toolcrib::{Env, config::{ClientEntry, McpClient}, install::Installation};
//!
//! # fn main() -> toolcrib::Result<()> {
//! let cursor = McpClient::named("cursor")?;
//! let at = Installation::new(cursor, cursor.user_file(&Env::process())?, "toolcrib");
//! let entry = cursor.entry(&ClientEntry::Url("http://127.0.0.1:7171/mcp".to_owned()))?;
//! at.write(&entry, false)?;
//! # Ok(())
//! # }
//! ```

pub(crate) mod file;
mod json_text;
#[cfg(test)]
mod tests;
pub(crate) mod toml_text;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{
    config::McpClient,
    error::{Error, Result},
};

/// How often a file is read again that another program has changed meanwhile.
const ATTEMPTS: usize = 5;

/// An entry of a client's file: where it is, or would be.
#[derive(Clone, Debug)]
pub struct Installation {
    client: &'static McpClient,
    path: PathBuf,
    name: String,
    /// Links that lead out of this folder are not followed.
    within: Option<PathBuf>,
}

/// The change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstallChange {
    /// It was written.
    Added,
    /// It stands in place of another one of its name.
    Replaced,
    /// It was there already.
    Unchanged,
    /// It was removed.
    Removed,
    /// There was none to remove.
    Absent,
}

/// The result of a change to a client's file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstallReport {
    /// The change of the entry.
    pub change: InstallChange,
    /// Where the file before the change is. `None`: there was none, or nothing was changed.
    pub backup: Option<PathBuf>,
    /// Whether the whole file is as it was before the entry was written, or is gone as it was not there then.
    pub restored: bool,
}

impl InstallChange {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Replaced => "replaced",
            Self::Unchanged => "unchanged",
            Self::Removed => "removed",
            Self::Absent => "absent",
        }
    }
}

impl InstallReport {
    fn new(change: InstallChange) -> Self {
        Self { change, backup: None, restored: false }
    }
}

impl Installation {
    /// The entry `name` in the file of `client` at `path`.
    pub fn new(client: &'static McpClient, path: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self { client, path: path.into(), name: name.into(), within: None }
    }

    /// The same, of a file that must be in `folder`: one that came from elsewhere may have links to files of the user's own.
    ///
    /// # Errors
    /// [`Error::Input`]: a link leads out of the folder.
    pub fn within(self, folder: impl Into<PathBuf>) -> Result<Self> {
        let at = Self { within: Some(folder.into()), ..self };
        at.check_place().map(|()| at)
    }

    fn check_place(&self) -> Result<()> {
        match self.within.as_deref().and_then(|folder| file::leads_out(&self.path, folder)) {
            None => Ok(()),
            Some(real) => Err(Error::input(
                format!("{} is not changed: it leads to {}", self.path.display(), real.display()),
                Some("remove the link; or, for the file of the user, leave out --project".to_owned()),
            )),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The entry that is there now.
    ///
    /// # Errors
    /// [`Error::Input`] with line and column, if the file cannot be understood; [`Error::Io`].
    pub fn present(&self) -> Result<Option<Value>> {
        self.find(file::read(&self.path)?.as_deref())
    }

    /// The text that a file with nothing but this entry has.
    pub fn text_of(&self, entry: &Value) -> String {
        match self.client.is_toml() {
            true => toml_text::alone(self.client.table, &self.name, entry),
            false => json_text::alone(self.client.table, &self.name, entry),
        }
    }

    /// Writes the entry. The file and its folder are made where they are missing.
    ///
    /// # Errors
    /// [`Error::Input`]: there is another entry of this name, unless `replace`; the file cannot be understood, or is no
    /// regular one. [`Error::Io`]. The file is then as it was.
    pub fn write(&self, entry: &Value, replace: bool) -> Result<InstallReport> {
        self.change(|text| {
            let change = match self.find(text)? {
                Some(present) if present == *entry => return Ok((InstallChange::Unchanged, None)),
                Some(_) if !replace => {
                    let what = format!("{} has another entry `{}`", self.path.display(), self.name);
                    return Err(Error::input(what, Some("replace it, or use another name".to_owned())));
                }
                Some(_) => InstallChange::Replaced,
                None => InstallChange::Added,
            };
            Ok((change, Some(self.with(text, entry)?)))
        })
    }

    /// Removes the entry. If nothing else has changed since it was written, the file is as it was before, byte for byte.
    ///
    /// # Errors
    /// The errors of [`Installation::write`].
    pub fn remove(&self) -> Result<InstallReport> {
        self.check_place()?;
        let Some(text) = file::read(&self.path)? else {
            return Ok(InstallReport::new(InstallChange::Absent));
        };
        let Some(entry) = self.find(Some(&text))? else {
            return Ok(InstallReport::new(InstallChange::Absent));
        };
        let is_before = |before: Option<&str>| {
            self.find(before).is_ok_and(|present| present.is_none())
                && self.with(before, &entry).is_ok_and(|after| after == text)
        };
        let backups = file::backups(&self.path);
        let restored = InstallReport { restored: true, ..InstallReport::new(InstallChange::Removed) };
        if let Some((backup, before)) = backups.iter().find(|(_, before)| is_before(Some(before))) {
            if file::replace(&self.path, Some(&text), before)? {
                file::delete(backup)?;
                return Ok(restored);
            }
        } else if is_before(None) && file::delete_new(&self.path)? {
            return Ok(restored);
        }
        self.change(|text| {
            let without = match self.client.is_toml() {
                true => toml_text::without(text.unwrap_or_default(), self.client.table, &self.name),
                false => json_text::without(text.unwrap_or_default(), self.client.table, &self.name),
            };
            Ok((InstallChange::Removed, Some(without.map_err(|problem| self.unclear(&problem))?)))
        })
    }

    /// Changes the file as `edit` says; again from the beginning, if another program changes it meanwhile.
    fn change(
        &self,
        edit: impl Fn(Option<&str>) -> Result<(InstallChange, Option<String>)>,
    ) -> Result<InstallReport> {
        for _ in 0..ATTEMPTS {
            self.check_place()?;
            let before = file::read(&self.path)?;
            let (change, after) = edit(before.as_deref())?;
            let Some(after) = after else { return Ok(InstallReport::new(change)) };
            let backup = before.as_ref().map(|before| file::back_up(&self.path, before)).transpose()?;
            match file::replace(&self.path, before.as_deref(), &after) {
                Ok(true) => return Ok(InstallReport { backup, ..InstallReport::new(change) }),
                outcome => {
                    // It is that of no change.
                    let deleted = backup.map_or(Ok(()), |backup| file::delete(&backup));
                    outcome.and(deleted)?;
                }
            }
        }
        let help = format!("quit {} and try again", self.client.title);
        Err(Error::input(format!("{} is being changed all the time", self.path.display()), Some(help)))
    }

    fn find(&self, text: Option<&str>) -> Result<Option<Value>> {
        let text = text.unwrap_or_default();
        let found = match self.client.is_toml() {
            true => toml_text::find(text, self.client.table, &self.name),
            false => json_text::find(text, self.client.table, &self.name),
        };
        found.map_err(|problem| self.unclear(&problem))
    }

    /// The text with the entry.
    fn with(&self, text: Option<&str>, entry: &Value) -> Result<String> {
        let Some(text) = text else { return Ok(self.text_of(entry)) };
        let with = match self.client.is_toml() {
            true => toml_text::with(text, self.client.table, &self.name, entry),
            false => json_text::with(text, self.client.table, &self.name, entry),
        };
        with.map_err(|problem| self.unclear(&problem))
    }

    fn unclear(&self, problem: &TextProblem) -> Error {
        let help = "nothing was changed: mend the file, or write the entry that --print shows".to_owned();
        Error::input(problem.in_file(&self.path), Some(help))
    }
}

/// A mistake in the text of a file. Line and column are from 1; 0 where it is not at one place.
#[derive(Debug)]
pub(crate) struct TextProblem {
    line: usize,
    column: usize,
    what: String,
}

impl TextProblem {
    fn new(what: impl Into<String>) -> Self {
        Self { line: 0, column: 0, what: what.into() }
    }

    /// The problem with its place.
    pub(crate) fn in_file(&self, path: &Path) -> String {
        let Self { line, column, what } = self;
        match (line, column) {
            (0, _) => format!("{}: {what}", path.display()),
            (line, column) => format!("{}:{line}:{column}: {what}", path.display()),
        }
    }
}
