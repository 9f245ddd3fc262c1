//! Advice for a server that did not start in its sandbox.

use std::path::{Path, PathBuf};

use crate::{
    config::{Endpoint, Sandbox, ServerConfig, StdioConfig},
    error::ErrorCode,
    launch::Runner,
};

/// Advice for a failed start in a sandbox. The sandbox is the likeliest reason, and what the server says seldom names it.
pub(super) fn advice(code: ErrorCode, config: &ServerConfig, stderr: &[String]) -> Option<String> {
    let Endpoint::Stdio(spec) = &config.endpoint else { return None };
    let sandbox = spec.sandbox.as_ref()?;
    if !matches!(code, ErrorCode::ServerExited | ErrorCode::StartupTimeout) {
        return None;
    }
    let runner = || of_runner(spec, sandbox, stderr);
    closed_argument(spec, sandbox, stderr).or_else(runner).or_else(|| Some(walls(sandbox)))
}

fn walls(sandbox: &Sandbox) -> String {
    let network = match (sandbox.network, sandbox.local_sockets) {
        (true, true) => "has a network",
        (true, false) => "has a network without local sockets (`local_sockets = true` opens those too)",
        (false, _) => "has no network (`network = true` gives it one)",
    };
    format!(
        "its sandbox {network}, and hides all files but its program, the system's and those of `read` and `write`: name \
         there what it needs"
    )
}

/// An argument that is a path, closed, and named where a file was refused to the server.
fn closed_argument(spec: &StdioConfig, sandbox: &Sandbox, stderr: &[String]) -> Option<String> {
    let words = ["ermission denied", "PermissionError", "EACCES", "not permitted"];
    let refused = || stderr.iter().filter(|line| words.iter().any(|word| line.contains(word)));
    let value = |argument: &'_ String| argument.split_once('=').map_or(0, |(name, _)| name.len() + 1);
    spec.args.iter().map(|argument| &argument[value(argument)..]).find_map(|argument| {
        let path = spec.cwd.join(argument).canonicalize().ok()?;
        let shown = path.to_string_lossy();
        let names = |line: &String| line.contains(&*shown) || argument.len() > 2 && line.contains(argument);
        let closed = !argument.is_empty() && refused().any(names) && !is_open(sandbox, &path);
        closed.then(|| {
            format!("its sandbox does not open its argument `{argument}`: add \"{shown}\" to `read`")
        })
    })
}

/// Whether a path may be read, as far as its name tells.
fn is_open(sandbox: &Sandbox, path: &Path) -> bool {
    // Of these some files are open.
    let in_part = ["/etc", "/dev"];
    let system = Sandbox::ALWAYS_READABLE.iter().chain(&in_part).any(|folder| path.starts_with(folder));
    system || below(&sandbox.read, path) || below(&sandbox.write, path)
}

/// Whether a path lies in one of these folders, or is one of them.
fn below(folders: &[PathBuf], path: &Path) -> bool {
    let real = |folder: &PathBuf| folder.canonicalize().unwrap_or_else(|_| folder.clone());
    folders.iter().any(|folder| path.starts_with(folder) || path.starts_with(real(folder)))
}

/// Advice about what a package runner lacks in its sandbox: a cache of its own, or its registry.
fn of_runner(spec: &StdioConfig, sandbox: &Sandbox, stderr: &[String]) -> Option<String> {
    let runner = Runner::of(&spec.command, &spec.args)?.name;
    let caches: &[(&str, &str)] = match runner {
        "npx" => &[("npm_config_cache", "npm")],
        "uvx" => &[("UV_CACHE_DIR", "uv"), ("UV_TOOL_DIR", "tools"), ("UV_PYTHON_INSTALL_DIR", "python")],
        "uv run" => &[("UV_CACHE_DIR", "uv"), ("UV_PYTHON_INSTALL_DIR", "python")],
        _ => return None,
    };
    let value = |name: &str| {
        let same = |(other, _): &(&String, &String)| other.as_str() == name || is_npm(name, other);
        spec.env.iter().find(same).map(|(_, value)| value)
    };
    let own = |name: &str| value(name).is_some_and(|folder| below(&sandbox.write, &spec.cwd.join(folder)));
    // It matters only where there are Pythons of uv beside the system's.
    let needless = |name: &str| {
        name == "UV_PYTHON_INSTALL_DIR" && !stderr.iter().any(|line| line.contains("managed Python"))
    };
    if caches.iter().any(|(name, _)| !own(name) && !needless(name)) {
        let folder = sandbox.write.first().map_or_else(|| "DIR".into(), |folder| folder.to_string_lossy());
        let caches: Vec<String> =
            caches.iter().map(|(name, leaf)| format!("{name} = \"{folder}/{leaf}\"")).collect();
        let written = if sandbox.write.is_empty() { " with DIR in `write`" } else { "" };
        let network = if sandbox.network { "" } else { ", and `network = true`" };
        return Some(format!(
            "{runner} needs a cache of its own: env = {{ {} }}{written}{network}",
            caches.join(", ")
        ));
    }
    let offline = if runner == "npx" { ("npm_config_offline", "true") } else { ("UV_OFFLINE", "1") };
    let is_offline = value(offline.0).is_some() || spec.args.iter().any(|argument| argument == "--offline");
    (!sandbox.network && !is_offline).then(|| {
        format!(
            "{runner} asks its registry at each start: set `network = true`, or `{} = \"{}\"` in its `env` once its \
             package is in the cache",
            offline.0, offline.1
        )
    })
}

/// npm reads its variables in either case.
fn is_npm(name: &str, other: &str) -> bool {
    name.starts_with("npm_config_") && name.eq_ignore_ascii_case(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::ServerName;

    fn server(line: &str, cwd: &Path, sandbox: Sandbox, env: &[(&str, &str)]) -> ServerConfig {
        let mut words = line.split(' ').map(str::to_owned);
        let mut spec = StdioConfig::new(words.next().unwrap(), words.collect(), cwd);
        spec.sandbox = Some(sandbox);
        for (name, value) in env {
            spec.set_env(*name, *value);
        }
        ServerConfig::new(ServerName::new("one").unwrap(), Endpoint::Stdio(spec))
    }

    fn exited(config: &ServerConfig, stderr: &str) -> String {
        let stderr: Vec<String> = stderr.lines().map(str::to_owned).collect();
        advice(ErrorCode::ServerExited, config, &stderr).unwrap()
    }

    #[test]
    fn a_closed_argument_is_named() {
        let lab = tempfile::tempdir().unwrap();
        let at = lab.path().canonicalize().unwrap();
        std::fs::write(at.join("shell.py"), "").unwrap();
        let denied = "python3: can't open file 'shell.py': [Errno 13] Permission denied";
        let wanted = format!(
            "its sandbox does not open its argument `shell.py`: add \"{}\" to `read`",
            at.join("shell.py").display()
        );
        let closed = |line: &str, sandbox| exited(&server(line, &at, sandbox, &[]), denied);
        assert_eq!(closed("python3 -u /usr/bin/env shell.py", Sandbox::default()), wanted);
        assert_eq!(closed("python3 --file=shell.py none.py", Sandbox::default()), wanted);
        let open = Sandbox { read: vec![at.clone()], ..Sandbox::default() };
        assert!(closed("python3 shell.py", open).starts_with("its sandbox has no network"));
        let config = server("python3 shell.py", &at, Sandbox::default(), &[]);
        for said in ["no key", "/home/libexec/pyenv: Permission denied"] {
            assert!(exited(&config, said).starts_with("its sandbox has no network"), "{said}");
        }
        assert_eq!(advice(ErrorCode::ToolsChanged, &config, &[]), None);
    }

    #[test]
    fn a_runner_in_a_sandbox_gets_advice_on_its_cache() {
        let at = Path::new("/");
        let sandbox = |network| Sandbox { network, ..Sandbox::default() };
        let npm = "npm error Your cache folder contains root-owned files\nnpm error sudo chown -R 0:0 \"/root/.npm\"";
        assert_eq!(
            exited(&server("npx -y some", at, sandbox(false), &[]), npm),
            "npx needs a cache of its own: env = { npm_config_cache = \"DIR/npm\" } with DIR in `write`, and \
             `network = true`"
        );
        let write = |network| Sandbox { write: vec!["/w".into()], ..sandbox(network) };
        assert_eq!(
            exited(&server("uvx some", at, write(true), &[]), ""),
            "uvx needs a cache of its own: env = { UV_CACHE_DIR = \"/w/uv\", UV_TOOL_DIR = \"/w/tools\", \
             UV_PYTHON_INSTALL_DIR = \"/w/python\" }"
        );
        let caches = [("UV_CACHE_DIR", "/w/uv"), ("UV_TOOL_DIR", "w/tools")];
        let asks = |line: &str, env: &[(&str, &str)]| exited(&server(line, at, write(false), env), "");
        assert_eq!(
            asks("uvx some", &caches),
            "uvx asks its registry at each start: set `network = true`, or `UV_OFFLINE = \"1\"` in its `env` once its \
             package is in the cache"
        );
        let cache = ("NPM_CONFIG_CACHE", "/w/npm");
        assert!(asks("npx some", &[cache]).contains("`npm_config_offline = \"true\"`"));
        for (line, env) in
            [("npx some", &[cache, ("npm_config_offline", "true")][..]), ("npx --offline some", &[cache])]
        {
            assert!(asks(line, env).starts_with("its sandbox has no network"), "{line}");
        }
        let python = "error: Failed to discover managed Python installations";
        assert!(
            exited(&server("uvx some", at, write(true), &caches), python).contains("UV_PYTHON_INSTALL_DIR")
        );
    }
}
