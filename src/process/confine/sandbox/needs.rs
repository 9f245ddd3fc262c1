//! What a program needs to run at all: open in every sandbox. [`Sandbox`](crate::Sandbox) says so in words.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// Programs, libraries and what they ask about the machine.
///
/// `/proc` as a whole, since a process's own folder there has no fixed name. The kernel itself refuses a process
/// inside of walls to look into one outside: its memory, environment and open files. Command lines can be seen.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
];

/// Public files of `/etc`: the dynamic loader, names of users and hosts, time zone, roots of trust. Not the folders
/// that hold private keys beside those, `ssl` and `pki`.
const ETC: &[&str] = &[
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.preload",
    "localtime",
    "timezone",
    "nsswitch.conf",
    "passwd",
    "group",
    "host.conf",
    "hosts",
    "hostname",
    "resolv.conf",
    "gai.conf",
    "services",
    "protocols",
    "mime.types",
    "os-release",
    "locale.alias",
    "ssl/certs",
    "ssl/cert.pem",
    "ssl/openssl.cnf",
    "ca-certificates",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "pki/tls/cert.pem",
    "pki/tls/openssl.cnf",
    "crypto-policies",
];

/// Devices without a secret; they may be written too.
pub(super) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A script may name an interpreter that is a script; the kernel follows four times.
const INTERPRETERS: usize = 5;

/// What `program` must be able to read, there or not; `path` is where `env` looks for interpreters.
pub(super) fn of(program: &Path, path: Option<&OsStr>) -> Vec<PathBuf> {
    let system = SYSTEM.iter().map(PathBuf::from);
    let etc = ETC.iter().map(|name| Path::new("/etc").join(name));
    system.chain(etc).chain(beside(program, path)).collect()
}

/// The program, the interpreters that it and they name, and the libraries beside each: a Python or Node.js that
/// was installed below a home folder has them in `lib` next to its `bin`.
fn beside(program: &Path, path: Option<&OsStr>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut next = Some(program.to_owned());
    for _ in 0..INTERPRETERS {
        let Some(program) = next else { break };
        let whole = fs::canonicalize(&program).unwrap_or_else(|_| program.clone());
        for place in [&program, &whole] {
            let Some(bin) = place.parent() else { continue };
            found.push(place.clone());
            if let (Some("bin"), Some(prefix)) =
                (bin.file_name().and_then(|name| name.to_str()), bin.parent())
            {
                found.extend(["lib", "lib64", "pyvenv.cfg"].map(|name| prefix.join(name)));
            }
        }
        next = interpreter(&whole, path);
    }
    found
}

/// The program that the first line of a script names, behind `env` too.
fn interpreter(script: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(script).ok()?.take(512).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
    let first = Path::new(words.next()?);
    if first.file_name().is_none_or(|name| name != "env") {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    std::env::split_paths(path?).map(|folder| folder.join(name)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn interpreters_and_their_libraries_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        for name in ["venv/bin", "python/bin", "python/lib", "node/bin", "node/lib"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("python/bin/python3"), "\x7fELF").unwrap();
        symlink(at("python/bin/python3"), at("venv/bin/python")).unwrap();
        fs::write(at("venv/bin/server"), format!("#!{}\nimport x\n", at("venv/bin/python").display()))
            .unwrap();
        let found = beside(&at("venv/bin/server"), None);
        for path in ["venv/bin/server", "venv/lib", "venv/pyvenv.cfg", "python/bin/python3", "python/lib"] {
            assert!(found.contains(&at(path)), "{path} is not in {found:?}");
        }
        assert!(!found.contains(&at("venv")) && !found.contains(&at("python")), "{found:?}");

        fs::write(at("node/bin/node"), "\x7fELF").unwrap();
        fs::write(at("tool"), "#!/usr/bin/env -S node --title=x\n").unwrap();
        let path = format!("/no/such:{}", at("node/bin").display());
        let found = beside(&at("tool"), Some(path.as_ref()));
        assert!(found.contains(&at("node/lib")), "{found:?}");
        assert!(!found.contains(&at("lib")), "a folder that is not `bin` opens nothing beside it: {found:?}");
    }

    #[test]
    fn scripts_that_name_each_other_come_to_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("loop");
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert!(beside(&script, None).contains(&script));
    }
}
