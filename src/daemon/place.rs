//! The files of the daemon of a configuration: one socket, one lock and one log per configuration file, in a
//! folder that belongs to this user alone.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::{
        fd::IntoRawFd,
        unix::{
            fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::fs::{FlockOperation, OFlags, flock};
use sha2::{Digest, Sha256};

use super::{
    client::{END_LIMIT, LOOK},
    short_hash,
};
use crate::{
    config::{Env, open_on_the_way, stranger_on_the_way},
    error::{ConfigError, Error, Result},
    process::{
        is_guarded_or_gone, marked_processes, owner_is_gone, replace_guards, thaw_marked, wake_guards,
    },
};

/// Longest path of a socket, in bytes: `sun_path` of unix(7) less its final zero; macOS has 104.
const MAX_SOCKET: usize = if cfg!(target_os = "linux") { 107 } else { 103 };
/// The most bytes of the record in a lock file.
const MAX_MARK: usize = 256;
/// How long after it was put there a lock is looked at again.
const SETTLED: Duration = Duration::from_millis(50);
/// How often guards of a daemon that was killed are woken.
const WAKE: Duration = Duration::from_millis(100);
/// How long before the limit those that stay blocked are ended.
const BLOCKED: Duration = Duration::from_secs(4);
/// No file of ours is a link.
const NOT_FOLLOWED: i32 = OFlags::NOFOLLOW.bits().cast_signed();
/// Length of the hash that names the files of one daemon.
const NAME: usize = 16;

/// Where the daemon of one configuration file is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonPlace {
    /// The socket; its lock and its log have the same name with another ending.
    socket: PathBuf,
}

/// The right to be the daemon. The kernel takes it back when the process ends, however that comes.
pub(super) struct Lock(File);

impl DaemonPlace {
    /// The place for the configuration in `file`, whether a daemon is there or not. Symbolic links lead to the
    /// same daemon as the file itself.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be found, [`Error::Input`] when the folder is not ours alone.
    pub fn of(file: &Path, env: &Env) -> Result<Self> {
        let file = fs::canonicalize(file)
            .map_err(|error| Error::io(format!("could not find {}", file.display()), error))?;
        Self::named(&file, env)
    }

    fn named(file: &Path, env: &Env) -> Result<Self> {
        let name = short_hash(&Sha256::new().chain_update(file.as_os_str().as_encoded_bytes()));
        Ok(Self { socket: folder(env)?.join(name).with_extension("sock") })
    }

    /// Finds the place like [`DaemonPlace::of`] for a file that was removed: by the path that it had.
    ///
    /// # Errors
    /// The errors of [`DaemonPlace::of`], for its folder.
    pub fn of_removed(file: &Path, env: &Env) -> Result<Self> {
        let (Some(parent), Some(name)) = (file.parent(), file.file_name()) else {
            return Self::of(file, env);
        };
        let parent = fs::canonicalize(parent)
            .map_err(|error| Error::io(format!("could not find {}", parent.display()), error))?;
        Self::named(&parent.join(name), env)
    }

    /// The places where daemons of this user are, or were killed.
    ///
    /// # Errors
    /// [`Error::Input`] when the folder is not ours alone.
    pub fn all(env: &Env) -> Result<Vec<Self>> {
        let entries = fs::read_dir(folder(env)?).into_iter().flatten().flatten();
        let sockets =
            entries.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new("sock")));
        let mut found: Vec<Self> = sockets.map(|socket| Self { socket }).collect();
        found.sort_by(|one, other| one.socket.cmp(&other.socket));
        Ok(found)
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The path of the log, which tells why the daemon has ended if it did so early.
    pub fn log(&self) -> PathBuf {
        self.socket.with_extension("log")
    }

    pub(super) fn lock_file(&self) -> PathBuf {
        self.socket.with_extension("lock")
    }

    /// Writes into the log what is wrong with the configuration and does not end the daemon. One that cannot be written
    /// keeps nobody.
    pub(super) fn warn(&self, error: &ConfigError) {
        let help = error.help.as_ref().map_or_else(String::new, |help| format!(" ({help})"));
        let _ = self.open_log().and_then(|mut log| writeln!(log, "warning: {error}{help}"));
    }

    /// Opens the log to append to; the daemon empties it once it has the lock.
    pub(super) fn open_log(&self) -> io::Result<File> {
        OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(NOT_FOLLOWED).open(self.log())
    }

    /// Takes the lock; `None` if a process has it that may be the daemon.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let path = self.lock_file();
        loop {
            let file = open_to_lock(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(error) if error == rustix::io::Errno::WOULDBLOCK => {
                    return if self.is_kept_by_servers(&file) { self.replace_lock(&file) } else { Ok(None) };
                }
                Err(error) => return Err(error.into()),
            }
            // The last owner may have removed the file while we waited: then our lock protects nothing.
            if self.is_the_lock(&file) {
                return Ok(Some(Lock(file)));
            }
        }
    }

    fn is_the_lock(&self, file: &File) -> bool {
        let there = fs::metadata(self.lock_file());
        there.is_ok_and(|there| file.metadata().is_ok_and(|ours| there.ino() == ours.ino()))
    }

    /// Whether a daemon was killed here, and only servers hold its lock: to read the file is enough for that, which a
    /// sandbox may allow.
    fn is_kept_by_servers(&self, file: &File) -> bool {
        let mut mark = [0; MAX_MARK];
        let read = file.read_at(&mut mark, 0).unwrap_or(0);
        let mark = mark.get(..read).and_then(|mark| str::from_utf8(mark).ok()).unwrap_or_default();
        let is_gone = mark.strip_suffix('\n').is_some_and(owner_is_gone);
        is_gone && self.has_dead_socket() && {
            let holders = holders(file);
            !holders.is_empty() && holders.into_iter().all(is_guarded_or_gone)
        }
    }

    /// Replaces `old`, which servers hold open, by a new lock with the same record. `None` if another process did.
    fn replace_lock(&self, old: &File) -> io::Result<Option<Lock>> {
        let path = self.socket.with_extension(format!("{:016x}", fastrand::u64(..)));
        let word = fs::read(self.lock_file())?;
        let file = open_to_lock(&path)?;
        let taken = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && file.write_all_at(&word, 0).is_ok()
            // Not if another one was as fast.
            && self.is_the_lock(old)
            && fs::rename(&path, self.lock_file()).is_ok();
        if !taken {
            let _ = fs::remove_file(&path);
            return Ok(None);
        }
        // One that looked before us may put its own there after us, within this time.
        sleep(SETTLED);
        Ok(self.is_the_lock(&file).then_some(Lock(file)))
    }

    /// Whether a daemon runs here, or is about to start.
    pub(super) fn is_taken(&self) -> bool {
        let Ok(file) = File::open(self.lock_file()) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err() && !self.is_kept_by_servers(&file)
    }

    /// A socket at this place, in the stead of one whose daemon is gone.
    pub(super) fn bind(&self, _lock: &Lock) -> io::Result<tokio::net::UnixListener> {
        let _ = fs::remove_file(&self.socket);
        let listener = tokio::net::UnixListener::bind(&self.socket)?;
        fs::set_permissions(&self.socket, fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Removes what a daemon left that was killed, once its servers and their guards are gone. Says whether there
    /// was anything.
    ///
    /// # Errors
    /// [`Error::TeardownIncomplete`] when some of them stay.
    pub fn clear(&self) -> Result<bool> {
        let deadline = Instant::now() + END_LIMIT;
        let lock = loop {
            match self.lock() {
                Ok(Some(lock)) => break lock,
                // A process that was killed lets go of one thing after the other, the lock perhaps last.
                Ok(None) if self.has_dead_socket() => {
                    let pids = if Instant::now() < deadline { Vec::new() } else { self.left() };
                    if !pids.is_empty() {
                        return Err(Error::TeardownIncomplete { pids });
                    }
                    if Instant::now() >= deadline {
                        return Ok(false);
                    }
                    sleep(LOOK);
                }
                Ok(None) | Err(_) => return Ok(false),
            }
        };
        let stale = self.socket.exists();
        let mark = fs::read_to_string(self.lock_file()).unwrap_or_default();
        // Without its end it was not written whole, and would fit the processes of others.
        if let Some(mark) = mark.strip_suffix('\n').filter(|mark| !mark.is_empty()) {
            let mut next = Instant::now();
            loop {
                let pids = marked_processes(mark);
                if pids.is_empty() {
                    break;
                }
                // A server can stop its guard, which then has not even heard that the daemon is gone.
                if Instant::now() >= next {
                    wake_guards(mark, Instant::now() + BLOCKED >= deadline);
                    thaw_marked(mark);
                    next = Instant::now() + WAKE;
                }
                if Instant::now() >= deadline {
                    return Err(Error::TeardownIncomplete { pids: replace_guards(pids) });
                }
                sleep(LOOK);
            }
        }
        self.leave(lock);
        Ok(stale)
    }

    /// Processes of the daemon whose record is in this lock file.
    fn left(&self) -> Vec<u32> {
        let mark = fs::read_to_string(self.lock_file()).unwrap_or_default();
        mark.strip_suffix('\n')
            .filter(|mark| owner_is_gone(mark))
            .map_or_else(Vec::new, |mark| replace_guards(marked_processes(mark)))
    }

    /// Whether no daemon is here, and the last one, if there was any, has ended by itself or was told to. One that is killed
    /// leaves its socket behind.
    pub fn is_given_up(&self) -> bool {
        !self.socket.exists()
    }

    /// Whether there is a socket without a listener.
    fn has_dead_socket(&self) -> bool {
        UnixStream::connect(&self.socket).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Records the mark of all processes of this daemon, for the case that it is killed.
    pub(super) fn leave_word(lock: &Lock, mark: &str) -> io::Result<()> {
        lock.0.set_len(0)?;
        lock.0.write_all_at(format!("{mark}\n").as_bytes(), 0)
    }

    fn abandon_files(&self) {
        self.close_listener();
        let _ = fs::remove_file(self.lock_file());
        let _ = fs::remove_file(self.log());
    }

    /// Gives the place up before a daemon is there. The log stays: this process still writes down why.
    pub(super) fn leave_log(&self, lock: Lock) {
        self.close_listener();
        let _ = fs::remove_file(self.lock_file());
        drop(lock);
    }

    /// Accepts no further connection.
    pub(super) fn close_listener(&self) {
        let _ = fs::remove_file(&self.socket);
    }

    /// Gives the place up at the end of this process, which others can wait for: the lock is the process's until
    /// the kernel takes it.
    pub(super) fn abandon(&self, lock: Lock) {
        self.abandon_files();
        let _ = lock.0.into_raw_fd();
    }

    /// Gives the place up, for the next daemon.
    pub(super) fn leave(&self, lock: Lock) {
        // Removed while it is held, so that it cannot be the lock of the next daemon.
        self.abandon_files();
        drop(lock);
    }
}

fn open_to_lock(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NOT_FOLLOWED).open(path)
}

/// The processes that hold a lock on `file`, according to the kernel; none if it does not say.
fn holders(file: &File) -> Vec<u32> {
    let Ok(inode) = file.metadata().map(|about| about.ino().to_string()) else { return Vec::new() };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    // `1: FLOCK  ADVISORY  WRITE 123 00:1b:456 0 EOF`; those that wait have `->` behind the number. Who is in no
    // namespace of ours has no number, and is taken for a daemon.
    let holder = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[_, "FLOCK", _, _, pid, at, ..] = &words[..] else { return None };
        (at.rsplit(':').next() == Some(&inode)).then(|| pid.parse().unwrap_or(0))
    };
    locks.lines().filter_map(holder).collect()
}

/// `$XDG_RUNTIME_DIR/toolcrib`, else a folder of this user under `/tmp`, or else below the state folder: the first that no other user
/// may put something else in the place of.
fn folder(env: &Env) -> Result<PathBuf> {
    let name = format!("{}.sock", "0".repeat(NAME));
    let short = |folder: &PathBuf| folder.join(&name).as_os_str().len() <= MAX_SOCKET;
    let runtime = env.runtime_folder().filter(|folder| folder.parent().is_some_and(Path::is_dir));
    let shared = Path::new("/tmp").join(Env::name_among_others());
    first_of_ours(runtime.into_iter().chain([shared]).chain(env.run_folder()).filter(short))
}

fn first_of_ours(folders: impl IntoIterator<Item = PathBuf>) -> Result<PathBuf> {
    let mut doubts = Vec::new();
    for folder in folders {
        let open = || Some(format!("anybody may replace what is in {}", open_on_the_way(&folder)?.display()));
        match stranger_on_the_way(&folder).or_else(open) {
            Some(doubt) => doubts.push(doubt),
            None => return made(folder),
        }
    }
    let help = "set XDG_RUNTIME_DIR to a folder of your own (mode 0700, a short path), or have what is in the way removed by its owner or \
                root";
    let what = format!("there is no safe folder for the socket of the daemon: {}", doubts.join("; "));
    Err(Error::input(what, Some(help.to_owned())))
}

/// A folder of this user alone, which is made if it is not there.
fn made(folder: PathBuf) -> Result<PathBuf> {
    match DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io(format!("could not create {}", folder.display()), error));
        }
        _ => {}
    }
    // Not followed: a link could lead into a folder of another user.
    let found = fs::symlink_metadata(&folder)
        .map_err(|error| Error::io(format!("could not look at {}", folder.display()), error))?;
    let uid = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == uid && found.mode().trailing_zeros() >= 6 {
        return Ok(folder);
    }
    Err(Error::input(
        format!("{} is not a folder of this user alone (mode 0700)", folder.display()),
        Some(format!("remove it, or `chmod 700 {}`", folder.display())),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> (tempfile::TempDir, Env) {
        let folder = tempfile::tempdir().unwrap();
        let env = Env::new("/", [("XDG_RUNTIME_DIR", folder.path().to_str().unwrap())]);
        fs::write(folder.path().join("servers.toml"), "").unwrap();
        (folder, env)
    }

    #[test]
    fn each_file_has_one_place_under_any_path() {
        let (folder, env) = lab();
        let file = folder.path().join("servers.toml");
        let link = folder.path().join("link.toml");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let place = DaemonPlace::of(&file, &env).unwrap();
        assert_eq!(place, DaemonPlace::of(&link, &env).unwrap());
        assert_eq!(place.socket().parent().unwrap(), folder.path().join("toolcrib"));
        fs::write(folder.path().join("other.toml"), "").unwrap();
        assert_ne!(place, DaemonPlace::of(&folder.path().join("other.toml"), &env).unwrap());
        assert!(DaemonPlace::of(&folder.path().join("none.toml"), &env).is_err());
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_replaced() {
        let (folder, _) = lab();
        let deep = folder.path().join("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        let env = Env::new("/", [("XDG_RUNTIME_DIR", deep.to_str().unwrap())]);
        let place = DaemonPlace::of(&folder.path().join("servers.toml"), &env).unwrap();
        assert!(place.socket().starts_with("/tmp"), "{}", place.socket().display());
        assert!(place.socket().as_os_str().len() <= MAX_SOCKET);
    }

    #[test]
    fn a_folder_open_to_other_users_is_refused() {
        let (folder, env) = lab();
        let ours = folder.path().join("toolcrib");
        fs::create_dir(&ours).unwrap();
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o755)).unwrap();
        let error = DaemonPlace::of(&folder.path().join("servers.toml"), &env).unwrap_err();
        assert!(error.to_string().contains("not a folder of this user alone"), "{error}");
    }

    #[test]
    fn folders_that_others_may_replace_are_not_used() {
        let (folder, env) = lab();
        let file = folder.path().join("servers.toml");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let place = DaemonPlace::of(&file, &env).unwrap();
        assert!(!place.socket().starts_with(folder.path()), "{}", place.socket().display());
        assert!(!folder.path().join("toolcrib").exists());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(DaemonPlace::of(&file, &env).unwrap().socket().starts_with(folder.path()));
    }

    #[toolcrib_testing::requires(root)]
    #[test]
    fn folders_of_other_users_are_not_used() {
        use std::os::unix::fs::{chown, symlink};
        let (folder, _) = lab();
        let [theirs, ours] = ["theirs", "ours"].map(|name| folder.path().join(name));
        let inner = theirs.join("run/toolcrib");
        fs::create_dir_all(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o700)).unwrap();
        symlink(&theirs, folder.path().join("link")).unwrap();
        let first = |paths: &[&Path]| first_of_ours(paths.iter().map(|path| path.to_path_buf()));
        assert_eq!(first(&[&inner, &ours]).unwrap(), inner);
        chown(&theirs, Some(65534), None).unwrap();
        // A folder of ours in one of theirs, the same by a link, and theirs.
        for taken in [&inner, &folder.path().join("link/run/toolcrib"), &theirs] {
            assert_eq!(first(&[taken, &ours]).unwrap(), ours, "{}", taken.display());
        }
        let error = first(&[&theirs, &inner]).unwrap_err();
        let told = format!("{error} {}", error.help().unwrap_or_default());
        assert!(told.contains("(65534)") && told.contains("XDG_RUNTIME_DIR"), "{told}");
    }

    #[test]
    fn no_link_is_followed_to_a_log_or_lock() {
        let (folder, env) = lab();
        let place = DaemonPlace::of(&folder.path().join("servers.toml"), &env).unwrap();
        let victim = folder.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        for path in [place.log(), place.lock_file()] {
            std::os::unix::fs::symlink(&victim, path).unwrap();
        }
        assert!(place.open_log().is_err() && place.lock().is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
    }

    #[test]
    fn the_lock_is_exclusive_even_if_its_file_was_removed() {
        let (folder, env) = lab();
        let place = DaemonPlace::of(&folder.path().join("servers.toml"), &env).unwrap();
        let lock = place.lock().unwrap().unwrap();
        assert!(place.is_taken() && place.lock().unwrap().is_none());
        place.leave(lock);
        assert!(!place.is_taken());
        let next = place.lock().unwrap().unwrap();
        assert!(place.is_taken() && place.lock().unwrap().is_none());
        place.leave(next);
    }
}
