//! Reads and replaces the files of clients: whole or not at all, with their rights, through symbolic links.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::{MetadataExt as _, fchown},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    bounded,
    error::{Error, Result},
};

/// The longest file that is read: some clients keep their whole history in it.
const LONGEST: u64 = 64 << 20;
/// The end of the name of a file before a change.
const BACKUP: &str = "bak-toolcrib";
/// Backups that are looked at.
const BACKUPS: usize = 50;

/// The text of a file. Nothing: there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>> {
    match bounded::read_text(path, LONGEST) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(None),
        Err(error) => Err(failed("read", path)(error)),
    }
}

/// Where `path` leads to, if that is outside of `folder`. A link that leads nowhere yet counts.
pub(crate) fn leads_out(path: &Path, folder: &Path) -> Option<PathBuf> {
    let there = path.ancestors().find(|above| above.symlink_metadata().is_ok())?;
    let aim = || fs::read_link(there).unwrap_or_else(|_| there.to_owned());
    match (there.canonicalize(), folder.canonicalize()) {
        (Ok(real), Ok(folder)) if real.starts_with(&folder) => None,
        (real, _) => Some(real.unwrap_or_else(|_| aim())),
    }
}

/// Puts `after` into the file, which has the text `before`. False: it has another one by now.
///
/// # Errors
/// [`Error::Io`]; the file is as it was.
pub(crate) fn replace(path: &Path, before: Option<&str>, after: &str) -> Result<bool> {
    let write = || {
        // A link stays one: the file that it leads to is replaced.
        let target = if before.is_some() { fs::canonicalize(path)? } else { path.to_owned() };
        let folder = target.parent().unwrap_or(Path::new("/"));
        if before.is_none() {
            fs::create_dir_all(folder)?;
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let draft = folder.join(format!(".{name}.toolcrib-{:016x}", fastrand::u64(..)));
        let written = write_draft(&draft, &target, before.is_some(), after).and_then(|()| {
            let now = bounded::read_text(&target, LONGEST);
            let is_same = match (before, now) {
                (Some(before), Ok(now)) => before == now,
                (None, Err(error)) => error.kind() == ErrorKind::NotFound,
                _ => false,
            };
            if is_same {
                fs::rename(&draft, &target)?;
                // The new name is on the disk too; where a folder cannot be synced, it soon will be.
                let _ = File::open(folder).and_then(|folder| folder.sync_all());
            }
            Ok(is_same)
        });
        if !matches!(written, Ok(true)) {
            let _ = fs::remove_file(&draft);
        }
        written
    };
    write().map_err(failed("write", path))
}

/// Writes a new file with the rights and the owner of `target`, if that is there.
fn write_draft(draft: &Path, target: &Path, is_there: bool, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(draft)?;
    if is_there {
        let (own, theirs) = (file.metadata()?, fs::metadata(target)?);
        if (own.uid(), own.gid()) != (theirs.uid(), theirs.gid()) {
            fchown(&file, Some(theirs.uid()), Some(theirs.gid()))?;
        }
        file.set_permissions(theirs.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Keeps `text` beside the file, with the rights of the file.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn back_up(path: &Path, text: &str) -> Result<PathBuf> {
    let plain = beside(path, BACKUP);
    let time = humantime::format_rfc3339_millis(SystemTime::now()).to_string().replace([':', '-', '.'], "");
    let backup = if plain.exists() { beside(path, &format!("{BACKUP}-{time}")) } else { plain };
    write_draft(&backup, path, true, text).map_err(|error| {
        if error.kind() != ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&backup);
        }
        failed("write", &backup)(error)
    })?;
    Ok(backup)
}

/// Keeps `text` beside the file like [`back_up`], in place of the backup that is there.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn back_up_last(path: &Path, text: &str) -> Result<PathBuf> {
    let backup = beside(path, BACKUP);
    let draft = beside(path, &format!("{BACKUP}-{:016x}", fastrand::u64(..)));
    let written = write_draft(&draft, path, true, text).and_then(|()| fs::rename(&draft, &backup));
    written.map(|()| backup.clone()).map_err(|error| {
        let _ = fs::remove_file(&draft);
        failed("write", &backup)(error)
    })
}

/// The backups of a file, with their texts; the latest comes first.
pub(crate) fn backups(path: &Path) -> Vec<(PathBuf, String)> {
    let first = beside(path, BACKUP);
    let prefix = format!("{}-", first.file_name().unwrap_or_default().to_string_lossy());
    let entries = path.parent().and_then(|folder| bounded::entries(folder).ok()).unwrap_or_default();
    let is_later =
        |entry: &PathBuf| entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix));
    let mut found: Vec<PathBuf> = entries.into_iter().filter(is_later).collect();
    found.sort_by(|a, b| b.cmp(a));
    found.push(first);
    let read = |backup: PathBuf| bounded::read_text(&backup, LONGEST).ok().map(|text| (backup, text));
    found.into_iter().take(BACKUPS).filter_map(read).collect()
}

/// Deletes a backup.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn delete(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(failed("remove", path))
}

/// Deletes a file that was new with the entry that it has. False: it is a link, which somebody has made.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn delete_new(path: &Path) -> Result<bool> {
    let about = path.symlink_metadata().map_err(failed("read", path))?;
    if about.is_file() {
        delete(path)?;
    }
    Ok(about.is_file())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{name}.{ending}"))
}

fn failed(what: &str, path: &Path) -> impl Fn(io::Error) -> Error {
    let words = format!("cannot {what} {}", path.display());
    move |error| Error::io(words.clone(), error)
}
