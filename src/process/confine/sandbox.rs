//! The sandbox: files through Landlock, the network through seccomp. Both hold for all that the server starts.

use std::{
    io,
    path::{Path, PathBuf},
};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::config::Sandbox;

/// The least that is a sandbox: before it, any file could be emptied.
const LEAST: ABI = ABI::V3;
/// What is asked for where the kernel has it.
const BEST: ABI = ABI::V5;

/// What every program needs to be loaded and to know where it is. Landlock itself keeps it out of the secrets in
/// `/proc` of processes outside the sandbox.
const ALWAYS_READ: [&str; 23] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/nix/store",
    "/proc",
    "/sys/devices/system/cpu",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/passwd",
    "/etc/group",
];
const ALWAYS_WRITE: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A sandbox, ready to be put on.
pub(super) struct Walls {
    files: Option<RulesetCreated>,
    network: Option<BpfProgram>,
}

/// The version of Landlock that this kernel has, as far as this library knows them; 0 without it.
pub(in crate::process) fn landlock_abi() -> u8 {
    let known = [ABI::V6, ABI::V5, ABI::V4, ABI::V3, ABI::V2, ABI::V1];
    known.into_iter().find(|abi| has(*abi)).map_or(0, |abi| abi as u8)
}

/// Whether this kernel and processor have filters of system calls.
pub(in crate::process) fn has_seccomp() -> bool {
    no_network().is_ok() && Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()
}

/// Whether the kernel has all of `abi`: asked by making a set of rules that is then thrown away.
fn has(abi: ABI) -> bool {
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let files = rules.handle_access(AccessFs::from_all(abi));
    let network = |rules: Ruleset| match abi >= ABI::V4 {
        true => rules.handle_access(AccessNet::from_all(abi)),
        false => Ok(rules),
    };
    let scope = |rules: Ruleset| match abi >= ABI::V6 {
        true => rules.scope(Scope::from_all(abi)),
        false => Ok(rules),
    };
    files.and_then(network).and_then(scope).and_then(Ruleset::create).is_ok()
}

impl Walls {
    /// Opens what may be reached and writes the filter. `program` is what will be started.
    pub(super) fn build(sandbox: &Sandbox, program: &Path) -> io::Result<Self> {
        let missing = !has(LEAST);
        if missing && !sandbox.best_effort {
            return Err(io::Error::other(format!(
                "this kernel cannot keep a server from files: it has Landlock {}, and {} is needed; without it \
                 only with `best_effort = true` in the sandbox",
                landlock_abi(),
                LEAST as u8,
            )));
        }
        let files = if missing { None } else { Some(files(sandbox, program).map_err(io::Error::other)?) };
        let network = match sandbox.network {
            true => None,
            false => match no_network() {
                Ok(filter) => Some(filter),
                Err(_) if sandbox.best_effort => None,
                Err(error) => return Err(io::Error::other(format!("no filter for the network: {error}"))),
            },
        };
        Ok(Self { files, network })
    }

    pub(super) fn put_on(self) -> io::Result<()> {
        if let Some(files) = self.files {
            files.restrict_self().map_err(io::Error::other)?;
        }
        if let Some(network) = self.network {
            // It also gives up gaining privileges, without which an ordinary user may not filter.
            seccompiler::apply_filter(&network).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

fn files(sandbox: &Sandbox, program: &Path) -> Result<RulesetCreated, String> {
    let told = |error: landlock::RulesetError| error.to_string();
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(LEAST))
        .map_err(told)?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(BEST))
        .map_err(told)?;
    // In addition to the filter, for what the filter cannot see.
    let ruleset = match sandbox.network {
        true => ruleset,
        false => ruleset.handle_access(AccessNet::from_all(BEST)).map_err(told)?,
    };
    let mut ruleset = ruleset.create().map_err(told)?;
    let (read, write) = (AccessFs::from_read(BEST), AccessFs::from_all(BEST));
    let always = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let own = [Some(program.to_owned()), program.canonicalize().ok()].into_iter().flatten();
    let implied = always(&ALWAYS_READ).into_iter().chain(own).map(|path| (path, read, true));
    let implied = implied.chain(always(&ALWAYS_WRITE).into_iter().map(|path| (path, write, true)));
    let wanted = sandbox.read.iter().map(|path| (path.clone(), read, false));
    let wanted = wanted.chain(sandbox.write.iter().map(|path| (path.clone(), write, false)));
    for (path, access, optional) in implied.chain(wanted) {
        let file = match PathFd::new(&path) {
            Ok(file) => file,
            Err(_) if optional => continue,
            Err(error) => return Err(format!("the sandbox names {}: {error}", path.display())),
        };
        // Some rights make sense for folders only.
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(BEST) };
        ruleset = ruleset.add_rule(PathBeneath::new(file, access)).map_err(told)?;
    }
    Ok(ruleset)
}

/// A filter that refuses every socket but local ones, and the door around it (io_uring makes sockets too).
fn no_network() -> Result<BpfProgram, seccompiler::BackendError> {
    let (local, refused) = (nix::libc::AF_UNIX, nix::libc::EPERM);
    let elsewhere =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, local.unsigned_abs().into())?;
    let rules = [
        (nix::libc::SYS_socket, vec![SeccompRule::new(vec![elsewhere])?]),
        (nix::libc::SYS_io_uring_setup, Vec::new()),
    ];
    SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::Allow,
        SeccompAction::Errno(refused.unsigned_abs()),
        std::env::consts::ARCH.try_into()?,
    )?
    .try_into()
}

#[cfg(test)]
mod tests {
    //! Both hold for a thread: each test puts its walls on in one, and looks around.

    use std::{
        fs,
        net::{TcpStream, UdpSocket},
        os::unix::net::UnixDatagram,
    };

    use super::*;

    fn inside<T: Send>(sandbox: &Sandbox, look: impl FnOnce() -> T + Send) -> T {
        let walls = Walls::build(sandbox, Path::new("/bin/sh")).unwrap();
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    walls.put_on().unwrap();
                    look()
                })
                .join()
                .unwrap()
        })
    }

    fn kind<T>(outcome: io::Result<T>) -> Option<io::ErrorKind> {
        outcome.err().map(|error| error.kind())
    }

    const DENIED: Option<io::ErrorKind> = Some(io::ErrorKind::PermissionDenied);

    #[test]
    fn files_are_open_as_far_as_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["read", "write", "other"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("file"), "text").unwrap();
        }
        let sandbox = Sandbox { read: vec![path("read")], write: vec![path("write")], ..Sandbox::default() };
        inside(&sandbox, || {
            assert_eq!(kind(fs::read(path("read/file"))), None);
            assert_eq!(kind(fs::write(path("read/file"), "")), DENIED);
            assert_eq!(kind(fs::write(path("read/new"), "")), DENIED);
            assert_eq!(kind(fs::write(path("write/new"), "more")), None);
            assert_eq!(kind(fs::remove_file(path("write/file"))), None);
            assert_eq!(kind(fs::read(path("other/file"))), DENIED);
            assert_eq!(kind(fs::read("/etc/shadow")), DENIED);
            assert_eq!(kind(fs::read("/proc/1/environ")), DENIED);
            assert_eq!(kind(fs::read("/usr/bin/env")), None);
            assert_eq!(kind(fs::write("/dev/null", "x")), None);
            let started = std::process::Command::new("/bin/true").status();
            assert!(started.unwrap().success());
        });
    }

    #[test]
    fn without_the_network_only_local_sockets_are_left() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let network = |network: bool| {
            inside(&Sandbox { network, ..Sandbox::default() }, || {
                [
                    kind(TcpStream::connect(address)),
                    kind(UdpSocket::bind("127.0.0.1:0")),
                    kind(std::net::TcpListener::bind("127.0.0.1:0")),
                    kind(UnixDatagram::unbound()),
                ]
            })
        };
        assert_eq!(network(false), [DENIED, DENIED, DENIED, None]);
        assert_eq!(network(true), [None; 4]);
    }

    #[test]
    fn a_path_that_is_not_there_is_named() {
        let sandbox = Sandbox { read: vec!["/no/such/folder".into()], ..Sandbox::default() };
        let error = Walls::build(&sandbox, Path::new("/bin/sh")).err().unwrap();
        assert!(error.to_string().contains("the sandbox names /no/such/folder"), "{error}");
    }
}
