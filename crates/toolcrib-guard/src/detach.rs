//! A process that is to outlive this one: the daemon of the command line, started by its first user.

use std::{
    ffi::OsString,
    fs::File,
    io,
    process::{Child, Command, ExitStatus, Stdio},
};

/// A process that goes on when this one ends. Until then, its end can be noticed.
pub struct Detached(Child);

impl Detached {
    /// Starts this very executable once more, with nothing to read and `log` to write to. It leaves our session
    /// by itself ([`leave_session`]): a hook between fork and exec would cost far more, see the guard.
    pub fn start(arguments: &[OsString], log: File) -> io::Result<Self> {
        let mut command = Command::new(executable()?);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::arg0(&mut command, "toolcrib");
        // Its folder may be removed while it is there, or be on a disk that is to be taken out.
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log));
        command.spawn().map(Self)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

/// The executable of this process, replaced or removed as it may be.
#[cfg(target_os = "linux")]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere it may not be known")]
fn executable() -> io::Result<std::path::PathBuf> {
    Ok(super::guard::OWN_EXECUTABLE.into())
}

#[cfg(not(target_os = "linux"))]
fn executable() -> io::Result<std::path::PathBuf> {
    std::env::current_exe()
}

/// Begins a session of its own for this process: the keys and the end of a terminal do not concern it.
pub fn leave_session() {
    // An error means that it leads one already.
    let _ = rustix::process::setsid();
}
