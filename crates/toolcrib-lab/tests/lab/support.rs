//! Runs `toolcrib-lab` in a folder of its own.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

const LAB: &str = env!("CARGO_BIN_EXE_toolcrib-lab");

/// A folder with a `servers.toml`, in which `FIXTURE` stands for the program of the fake servers.
pub(crate) struct Bench(pub(crate) TempDir);

impl Bench {
    pub(crate) fn new(config: &str) -> Self {
        let fakes = Path::new(LAB).with_file_name("toolcrib-fakes");
        let hint = "run `cargo build --workspace`, or the tests with `--workspace`";
        assert!(fakes.is_file(), "{} is not built: {hint}", fakes.display());
        let folder = tempfile::tempdir().unwrap();
        let config = config.replace("FIXTURE", &format!("{:?}", fakes.to_str().unwrap()));
        std::fs::write(folder.path().join("servers.toml"), config).unwrap();
        Self(folder)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LAB);
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        // What the lab starts keeps nothing among what the user of this machine has.
        command.env("XDG_CACHE_HOME", self.0.path().join("cache"));
        command.env("XDG_STATE_HOME", self.0.path().join("state"));
        command
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        std::fs::write(self.0.path().join(name), text).unwrap();
    }
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// Polls until `condition` holds.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "no sign of: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
