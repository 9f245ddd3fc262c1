//! Refuses files that decide what is run and that the user has not named, unless the user or root owns them.
//!
//! Other users can put a file where it is found (in `/tmp`, or in one of their folders), but not one that
//! belongs to another user. As with git, `sudo` in a user's own project is no exception: there, files of the user who
//! called it count as well.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::walls::way;
use crate::config::env::Env;
use crate::error::{ConfigError, Error, Result};

/// The users whose files are accepted.
pub(in crate::config) struct Owners(Vec<u32>);

impl Owners {
    pub(in crate::config) fn of(env: &Env) -> Self {
        let own = rustix::process::geteuid().as_raw();
        // Only root may have switched from another user (sudo).
        let caller = env.get("SUDO_UID").filter(|_| own == 0).and_then(|user| user.parse().ok());
        Self([own, 0].into_iter().chain(caller).collect())
    }

    /// The other user that owns the file, or the link if it is one.
    fn stranger(&self, path: &Path) -> Option<u32> {
        let owners =
            [fs::symlink_metadata(path), fs::metadata(path)].map(|about| about.map(|about| about.uid()));
        owners.into_iter().filter_map(io::Result::ok).find(|owner| !self.0.contains(owner))
    }

    /// # Errors
    /// One of `paths`, by which `file` was found, is another user's, or a folder or link on the way to it from the
    /// root. Modes are not checked: many file systems (of Windows, of hosts of virtual machines) show every file as
    /// writable for all.
    pub(in crate::config) fn admit<'a>(
        &self,
        file: &Path,
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let strange = paths.into_iter().find_map(|path| Some((path.to_owned(), self.stranger(path)?)));
        let strange = strange.or_else(|| self.on_the_way(file));
        let Some((path, owner)) = strange else { return Ok(()) };
        let whose = format!("belongs to {}", named(owner));
        let message = match path == *file {
            true => format!("is refused: it {whose}"),
            false => format!("is refused: {} {whose}", path.display()),
        };
        let help = format!(
            "a configuration starts programs: if you trust this one, name it with `--config {}`",
            file.display()
        );
        Err(refused(file, message, help))
    }

    /// A folder or link on the way to `path`, or itself, that is another user's, and whose. Who owns a folder above, or
    /// one that a link leads through, can put another one in the place of what is below.
    fn on_the_way(&self, path: &Path) -> Option<(PathBuf, u32)> {
        let places = way(path).into_iter().filter_map(|place| Some((self.stranger(&place)?, place)));
        places.map(|(owner, place)| (place, owner)).find(|(_, owner)| !is_unknown(*owner))
    }

    /// A reason to doubt a folder that we write to: it, or a folder or link on the way to it, belongs to another user.
    pub(in crate::config) fn doubt(&self, folder: &Path) -> Option<String> {
        let (place, owner) = self.on_the_way(folder)?;
        Some(format!("{} belongs to {}", place.display(), named(owner)))
    }

    /// Checks a file that the configuration of the file `config` names.
    ///
    /// # Errors
    /// All users can create files in its folder, and it belongs to none of the accepted users, nor to the owner of the
    /// configuration.
    pub(in crate::config) fn admit_beside(&self, file: &Path, config: Option<&Path>) -> Result<()> {
        let is_open = |folder: &Path| fs::metadata(folder).is_ok_and(|about| about.mode() & 0o002 != 0);
        let Some(owner) = file.parent().filter(|folder| is_open(folder)).and_then(|_| self.stranger(file))
        else {
            return Ok(());
        };
        let same =
            config.and_then(|config| fs::metadata(config).ok()).is_some_and(|about| about.uid() == owner);
        if same {
            return Ok(());
        }
        let message =
            format!("is refused: it belongs to {}, and anybody may put files into its folder", named(owner));
        let help = "move the configuration to a folder of your own".to_owned();
        Err(refused(file, message, help))
    }
}

/// Whose a folder or link on the way from the root to `path` is, or `path` itself, if it is neither this user's nor root's: `X belongs to
/// user bob (1001)`. What is not there is nobody's.
pub fn stranger_on_the_way(path: &Path) -> Option<String> {
    Owners(vec![rustix::process::geteuid().as_raw(), 0]).doubt(path)
}

/// A folder on the way from the root to `path` in which anybody may replace what is there. In one such as /tmp nobody replaces what is
/// another's.
pub fn open_on_the_way(path: &Path) -> Option<PathBuf> {
    let is_open = |place: &PathBuf| {
        fs::symlink_metadata(place).is_ok_and(|about| about.is_dir() && about.mode() & 0o1002 == 0o002)
    };
    way(path.parent()?).into_iter().find(is_open)
}

/// Whether an owner is shown in place of all that have no number in this user namespace, root among them.
fn is_unknown(owner: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let all_known = read("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"]);
    !all_known && read("/proc/sys/kernel/overflowuid").trim() == owner.to_string()
}

fn refused(file: &Path, message: String, help: String) -> Error {
    ConfigError { file: Some(file.to_owned()), message, help: Some(help), ..ConfigError::default() }.into()
}

/// `user bob (1001)`.
fn named(user: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == user.to_string()).then(|| name.to_owned())
    });
    name.map_or_else(|| format!("user {user}"), |name| format!("user {name} ({user})"))
}
