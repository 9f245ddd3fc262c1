//! The environment of the forked rows: a Python of its own with the modules that a template imports, and a script for each server.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::row::Forked;

/// Modules that the servers share, and that a template therefore imports.
const MODULES: [(&str, &str); 5] = [
    ("torture_servers", include_str!("forked/torture_servers.py")),
    ("torture_thread", include_str!("forked/torture_thread.py")),
    ("torture_descriptor", include_str!("forked/torture_descriptor.py")),
    ("torture_environment", include_str!("forked/torture_environment.py")),
    ("torture_hang", include_str!("forked/torture_hang.py")),
];
/// Prints the path of a Python that can have templates.
const PROBE: &str = "import sys, venv; assert sys.version_info >= (3, 9); \
                     assert sys.implementation.name == 'cpython'; print(sys.executable)";
const SITE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

/// A Python environment below a folder.
#[derive(Debug)]
pub(super) struct PythonEnvironment {
    folder: PathBuf,
}

/// A CPython of version 3.9 or newer, if there is one in `PATH`.
pub(super) fn find() -> Option<PathBuf> {
    printed(Path::new("python3"), PROBE).ok()
}

impl PythonEnvironment {
    /// Makes one in `folder` for `python`.
    pub(super) fn make(python: &Path, folder: PathBuf) -> io::Result<Self> {
        let made = Self { folder };
        let mut command = Command::new(python);
        command.args(["-m", "venv", "--without-pip"]).arg(made.folder.join("env")).stdin(Stdio::null());
        let status = command.stdout(Stdio::null()).status()?;
        if !status.success() {
            return Err(io::Error::other(format!("`{} -m venv` ended with {status}", python.display())));
        }
        let site = printed(&made.python(), SITE)?;
        for (name, text) in MODULES {
            fs::write(site.join(name).with_extension("py"), text)?;
        }
        for forked in Forked::ALL {
            let import = forked.import().map_or_else(String::new, |name| format!("import {name}\n"));
            let traits = forked.server_trait();
            let text = format!(
                "{import}import torture_servers\n\nif __name__ == \"__main__\":\n    torture_servers.main(\"{traits}\")\n"
            );
            fs::write(made.script(*forked), text)?;
        }
        Ok(made)
    }

    pub(super) fn python(&self) -> PathBuf {
        self.folder.join("env/bin/python")
    }

    pub(super) fn script(&self, forked: Forked) -> PathBuf {
        self.folder.join(forked.name()).with_extension("py")
    }
}

/// The path that `python` prints.
fn printed(python: &Path, code: &str) -> io::Result<PathBuf> {
    let mut command = Command::new(python);
    let output = command.args(["-c", code]).stdin(Stdio::null()).stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.success() && Path::new(&text).is_absolute() {
        true => Ok(text.into()),
        false => Err(io::Error::other(format!("{} ended with {}", python.display(), output.status))),
    }
}
