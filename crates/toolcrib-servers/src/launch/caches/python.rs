//! Python writes its bytecode beside the modules of its environment and needs no help with that, unless it may not
//! write there: an environment in an image or of another user, whose installer has compiled nothing (uv does not by
//! itself), is compiled anew at every start. `PYTHONPYCACHEPREFIX` (<https://docs.python.org/3/using/cmdline.html>,
//! since 3.8) names another place.
//!
//! Only there: with the variable Python does not look beside the modules any more, those of its own library included,
//! which would make a start slower whose bytecode is there. The first start with it compiles that library too and takes
//! 1.4 times as long, those after it half as long (mcp-server-time, Python 3.11); so not where the folder may be gone
//! with this start, as in a new container. Packages are not compiled as a whole when they are installed either
//! (`UV_COMPILE_BYTECODE`): that takes longer than to compile what a server imports, which its first start keeps, and
//! which `toolcrib warm` has made.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{bounded, config::StdioConfig, process::program_path};

const VARIABLE: &str = "PYTHONPYCACHEPREFIX";
/// Switches the bytecode of Python off; set by the user.
const DISABLED: &str = "PYTHONDONTWRITEBYTECODE";

/// Packages that an environment has from its creation, compiled, with any installer.
const BUNDLED: &[&str] = &["pip", "setuptools", "pkg_resources", "_distutils_hack"];

/// The variable and the name of a folder, for a program of an environment that keeps nothing, without a wish of
/// somebody's. Looks at some files.
pub(super) fn variable(spec: &StdioConfig) -> Option<(&'static str, &'static str)> {
    if [VARIABLE, DISABLED].iter().any(|name| spec.env.contains_key(*name)) {
        return None;
    }
    let program = program_path(spec).ok()?;
    keeps_nothing(program.parent()?.parent()?, is_writable).then_some((VARIABLE, "python"))
}

/// Whether there is an environment at `prefix`, without bytecode and without a way to keep some.
fn keeps_nothing(prefix: &Path, writable: impl Fn(&Path) -> bool) -> bool {
    modules_of(prefix).is_some_and(|modules| !writable(&modules) && !is_compiled(&modules))
}

/// Where the packages of the environment below `prefix` are, if that is one.
fn modules_of(prefix: &Path) -> Option<PathBuf> {
    if !prefix.join("pyvenv.cfg").is_file() {
        return None;
    }
    let libraries = bounded::entries(&prefix.join("lib")).ok()?.into_iter();
    libraries.map(|library| library.join("site-packages")).find(|modules| modules.is_dir())
}

fn is_writable(folder: &Path) -> bool {
    rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok()
}

/// Whether there is bytecode of any package: installers compile all of them or none.
fn is_compiled(modules: &Path) -> bool {
    let packages = fs::read_dir(modules).into_iter().flatten().take(bounded::MAX_ENTRIES).flatten();
    packages
        .filter(|package| !BUNDLED.iter().any(|bundled| package.file_name() == *bundled))
        .any(|package| package.path().join("__pycache__").is_dir())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::launch::caches::Caches;

    #[test]
    fn a_read_only_venv_gets_a_bytecode_folder() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("lib/python3.12/site-packages");
        fs::create_dir_all(modules.join("server")).unwrap();
        let kept = |writable: bool| keeps_nothing(folder.path(), |_| writable);
        assert!(!kept(false), "no environment");
        fs::write(folder.path().join("pyvenv.cfg"), "").unwrap();
        assert!(kept(false) && !kept(true));
        fs::create_dir_all(modules.join("pip/__pycache__")).unwrap();
        fs::create_dir_all(modules.join("__pycache__")).unwrap();
        assert!(kept(false), "only what the environment came with is compiled");
        fs::create_dir_all(modules.join("server/__pycache__")).unwrap();
        assert!(!kept(false));
    }

    #[test]
    fn configured_bytecode_settings_win() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("lib/python3.12/site-packages");
        let program = folder.path().join("bin/server");
        for made in [&modules, program.parent().unwrap()] {
            fs::create_dir_all(made).unwrap();
        }
        for file in [&program, &folder.path().join("pyvenv.cfg")] {
            fs::write(file, "").unwrap();
        }
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let given_by = |lasts: bool, spec: &StdioConfig| {
            let with = Caches { folder: Path::new("/cache").into(), lasts }.with(spec);
            with.as_ref().unwrap_or(spec).env.get(VARIABLE).cloned()
        };
        let given = |spec: &StdioConfig| given_by(true, spec);
        let server = StdioConfig::new(&program, vec![], folder.path());
        assert_eq!(given(&server), None, "it can keep its own");
        fs::set_permissions(&modules, fs::Permissions::from_mode(0o555)).unwrap();
        // Permissions do not apply to the superuser.
        let expected = (!is_writable(&modules)).then(|| "/cache/python".to_owned());
        assert_eq!(given(&server), expected);
        assert_eq!(given_by(false, &server), None, "it would compile more, and perhaps for this one start");
        let mut decided = server.clone();
        decided.set_env(VARIABLE, "/elsewhere".to_owned());
        assert_eq!(given(&decided).as_deref(), Some("/elsewhere"));
        let mut disabled = server.clone();
        disabled.set_env(DISABLED, "1".to_owned());
        assert_eq!(given(&disabled), None);
        assert_eq!(given(&StdioConfig { start_caches: false, ..server }), None);
    }
}
