//! Checks for what tests require. In doubt it counts as missing.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub(crate) fn file(path: &str) -> bool {
    Path::new(path).is_file()
}

pub(crate) fn variable(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Whether a program is on the path.
pub(crate) fn program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether a command ends with code 0.
pub(crate) fn succeeds(command: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(command);
    let quiet = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn output(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).stdin(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The numbers of a version, as far as there are any.
fn numbers(version: &str) -> Vec<u32> {
    version.split(['.', '-']).map_while(|part| part.trim().parse().ok()).collect()
}

/// Whether this is Linux of that version or a newer one.
pub(crate) fn linux(major: u32, minor: u32) -> bool {
    numbers(&read("/proc/sys/kernel/osrelease")) >= vec![major, minor]
}

pub(crate) fn root() -> bool {
    output("id", &["-u"]).is_some_and(|id| id.trim() == "0")
}

/// Whether a program in the temporary folder can have other rights than its caller.
pub(crate) fn setuid() -> bool {
    let allowed = read("/proc/self/status").contains("NoNewPrivs:\t0");
    root() && allowed && !mount_options(&env::temp_dir()).split(',').any(|option| option == "nosuid")
}

/// The options of the mount that a path is in, by proc_pid_mountinfo(5).
fn mount_options(path: &Path) -> String {
    let table = read("/proc/self/mountinfo");
    let rows = table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(4);
        Some((fields.next()?, fields.next()?))
    });
    let around = rows.filter(|(folder, _)| path.starts_with(folder));
    around.max_by_key(|(folder, _)| folder.len()).map(|(_, options)| options.to_owned()).unwrap_or_default()
}

/// Whether a folder can be made in the cgroup of this process.
pub(crate) fn cgroup() -> bool {
    let table = read("/proc/self/cgroup");
    let Some(own) = table.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let probe =
        PathBuf::from("/sys/fs/cgroup").join(own).join(format!("toolcrib-probe-{}", std::process::id()));
    fs::create_dir(&probe).is_ok() && fs::remove_dir(&probe).is_ok()
}

/// Whether a folder can be made in the freezer of cgroup v1.
pub(crate) fn freezer() -> bool {
    let mounts = read("/proc/self/mounts");
    let mount = mounts.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, place, "cgroup", options, ..] = words[..] else { return None };
        options.split(',').any(|option| option == "freezer").then(|| PathBuf::from(place))
    });
    let Some(mount) = mount else { return false };
    let probe = mount.join(format!("toolcrib-probe-{}", std::process::id()));
    fs::create_dir(&probe).is_ok() && fs::remove_dir(&probe).is_ok()
}

/// Whether orphans become children of process 1, not of a subreaper in between.
pub(crate) fn init_adopts_orphans() -> bool {
    let Some(pid) = output("sh", &["-c", "(exec sleep 2 >/dev/null 2>&1 & echo $!)"]) else { return false };
    let stat = read(format!("/proc/{}/stat", pid.trim()));
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)) == Some("1")
}

/// Whether a pipe can hold 2 MiB: by the limit of the system, or without a limit by CAP_SYS_RESOURCE.
pub(crate) fn large_pipes() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let most = read("/proc/sys/fs/pipe-max-size").trim().parse::<u64>();
    let status = read("/proc/self/status");
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    most.is_ok_and(|most| most >= 2 << 20) || capabilities.is_some_and(|mask| mask & CAP_SYS_RESOURCE != 0)
}

pub(crate) fn export_readers() -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/exports");
    folder.join("venv/.stamp").is_file() && program("node")
}

/// The nats-server of the variable; without it the first one of the path and of `tests/nats/install.sh` that is new enough.
pub(crate) fn nats_server() -> Option<PathBuf> {
    let named = env::var_os(crate::NATS_SERVER).filter(|path| !path.is_empty());
    let programs: Vec<PathBuf> = match named {
        Some(named) => vec![named.into()],
        None => {
            let path = env::var_os("PATH").unwrap_or_default();
            let in_path = env::split_paths(&path).map(|folder| folder.join("nats-server"));
            in_path.chain([installed_nats_server()]).collect()
        }
    };
    programs.into_iter().filter(|program| program.is_file()).find(|program| {
        let said = output(&program.to_string_lossy(), &["--version"]);
        let version = said.as_deref().and_then(|line| line.rsplit_once(" v"));
        version.is_some_and(|(_, version)| numbers(version) >= vec![2, 10, 23])
    })
}

pub(crate) fn installed_nats_server() -> PathBuf {
    tests("nats").join("bin/nats-server")
}

pub(crate) fn public_servers() -> bool {
    let folder = tests("servers");
    ["node_modules", "venv", "venv-sqlite"].iter().all(|part| folder.join(part).is_dir())
}

pub(crate) fn numpy() -> bool {
    tests("servers").join("venv-numpy").is_dir()
}

pub(crate) fn uv() -> bool {
    tests("servers").join("uv-cache").is_dir()
}

/// A folder of `tests`.
fn tests(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(name)
}
