//! Changes to this process: inherited descriptors and signals, its limit of open files, its session, and starting its executable
//! again as a daemon.

use std::{
    ffi::OsString,
    fs::File,
    io,
    process::{Child, Command, ExitStatus, Stdio},
};

use crate::platform::own_executable;
pub use crate::{
    file_limit::raise_file_limit,
    inherited::{ignores_hangup, inherited_socket, reset_inherited},
    launcher::end_with_launcher,
};

/// A child process that keeps running when this process ends. Until then its exit can be observed.
pub struct Detached(Child);

impl Detached {
    /// Starts the executable of this process again, with an empty standard input and `log` as standard error. The new
    /// process must call [`leave_session`]: a hook between fork and exec would be slower.
    pub fn start(arguments: &[OsString], log: File) -> io::Result<Self> {
        let executable = own_executable()?;
        let mut command = Command::new(&executable);
        std::os::unix::process::CommandExt::arg0(&mut command, "toolcrib");
        // So that the working directory can be removed or unmounted while the process runs.
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::from(log));
        // The new process starts with the file limit that this one started with, so that its servers get that limit.
        let _lowered = crate::file_limit::Lowered::new();
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", executable.display()));
        command.spawn().map(Self).map_err(named)
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

/// Makes this process the leader of a new session, so that it gets no signals from a terminal.
pub fn leave_session() {
    // It fails if this process leads a session or group already.
    let _ = rustix::process::setsid();
}

/// Moves this process into a process group of its own: the signals of the terminal's keys are not for it.
pub fn leave_group() {
    // It fails if this process leads a session or group already.
    let _ = rustix::process::setpgid(None, None);
}
