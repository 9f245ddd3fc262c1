//! Writes the files of an export: for their owner alone, and whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    error::{Error, Result},
    run_files::private::{self, PrivateFolder},
};

/// Where an export goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) path: &'a Path,
    /// It is in the folder of a run, which may come from somebody else: no link is followed there. A place that a person
    /// has named may be one, or a device.
    pub(super) in_run: bool,
}

/// The file that an export is written to first: a draft, or a device or pipe itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    path: &'a Path,
    is_draft: bool,
}

impl Target<'_> {
    /// Opens it for its owner alone, empty.
    pub(super) fn create(self) -> Result<File> {
        let opened = match self.is_draft {
            true => private::create(self.path),
            false => OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(self.path),
        };
        opened.map_err(|error| Error::io(format!("cannot write {}", self.path.display()), error))
    }

    /// Makes a file beside it, which is gone as soon as it is closed.
    pub(super) fn create_beside(self, ending: &str) -> Result<File> {
        let path = beside(self.path, ending);
        let file = Target { path: &path, is_draft: true }.create()?;
        fs::remove_file(&path).map_err(failed)?;
        Ok(file)
    }
}

/// A path beside `path`.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

/// Replaces the file at a place with the one that `write` writes, once that is whole.
pub(super) fn replace_file<T>(place: Place<'_>, write: impl FnOnce(Target<'_>) -> Result<T>) -> Result<T> {
    let path = place.path;
    if !place.in_run && path.metadata().is_ok_and(|found| !found.is_file()) {
        // A device or a pipe is written to, not replaced; a folder is told by its error.
        return write(Target { path, is_draft: false });
    }
    let draft = beside(path, ".new");
    let written = write(Target { path: &draft, is_draft: true }).and_then(|written| {
        let placed = fs::rename(&draft, path);
        placed.map_err(|error| Error::io(format!("cannot write {}", path.display()), error))?;
        Ok(written)
    });
    if written.is_err() {
        // The draft may not exist.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Makes the folder of an export, for its owner alone.
///
/// # Errors
/// [`Error::Input`] when there is something in it: it could be taken for a part of the export.
pub(super) fn new_folder(place: Place<'_>) -> Result<PrivateFolder> {
    let path = place.path;
    let failed = |error| Error::io(format!("cannot write to {}", path.display()), error);
    let open = || match (place.in_run, path.parent(), path.file_name()) {
        (true, Some(run), Some(name)) => PrivateFolder::open(run)?.below(Path::new(name)),
        _ => PrivateFolder::open(path),
    };
    match fs::read_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A link that leads nowhere is in the way as well.
            private::create_dir_all(path).and_then(|()| open()).map_err(failed)
        }
        Err(error) => Err(failed(error)),
        Ok(mut entries) => {
            let folder = open().map_err(failed)?;
            if entries.next().is_none() {
                return Ok(folder);
            }
            let help = "name an empty folder or a new one with -o, or remove it".to_owned();
            Err(Error::input(format!("{} is not empty", path.display()), Some(help)))
        }
    }
}

/// Writes a document to a file in the folder of an export.
pub(super) fn document(folder: &PrivateFolder, name: &str, document: &Value) -> Result<()> {
    let written = folder.replace(name.as_ref(), format!("{document:#}\n").as_bytes());
    written.map_err(|error| Error::io(format!("cannot write {name} of the export"), error))
}

/// Writes a document as a line.
pub(super) fn line(out: &mut dyn Write, document: &Value) -> Result<()> {
    writeln!(out, "{document}").map_err(failed)
}

pub(super) fn failed(error: io::Error) -> Error {
    Error::io("cannot write the export", error)
}
