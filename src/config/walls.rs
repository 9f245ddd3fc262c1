//! What the sandboxes of a configuration do to each other and to toolcrib: a server that may write what others are
//! started from decides what they do.
//!
//! Symbolic links are resolved here as they are now. That is for early and plain words: each start judges anew, without
//! following any link that a server may have made since (`process::confine`).

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Config, Endpoint, Env, Sandbox, ServerConfig, ServerEntry};
use crate::{
    error::{ConfigError, Error},
    tool::ServerName,
};

/// A path of ours that decides what runs, and what it is.
struct Ours {
    what: &'static str,
    path: PathBuf,
    /// Whether a `write` folder may not lie in it either.
    whole: bool,
}

/// Refuses sandboxes that do not hold, warns of servers that others decide, and tells each sandbox of the others.
pub(super) fn check(config: &mut Config, env: &Env) {
    let writes = |entry: &ServerEntry| {
        entry
            .server
            .as_ref()
            .is_ok_and(|server| sandbox(server).is_some_and(|sandbox| !sandbox.write.is_empty()))
    };
    if !config.servers.values().any(writes) {
        return;
    }
    let ours = ours(config, env);
    for (name, entry) in &mut config.servers {
        let Some(sandbox) = entry.server.as_ref().ok().and_then(sandbox) else { continue };
        let Some((key, message, help)) = fault(sandbox, &ours) else { continue };
        let error = ConfigError {
            file: entry.source.clone(),
            key: Some(format!("servers.{name}.sandbox.{key}")),
            server: Some(name.clone()),
            message,
            help: Some(help),
            ..ConfigError::default()
        };
        entry.server = Err(Arc::new(Error::from(error)));
    }
    let servers: Vec<&ServerConfig> =
        config.servers.values().filter_map(|entry| entry.server.as_ref().ok()).collect();
    let started: Vec<(&ServerName, Vec<PathBuf>)> =
        servers.iter().map(|server| (&server.name, started_from(server))).collect();
    let mut notes = Vec::new();
    let mut written: Vec<PathBuf> = Vec::new();
    for (writer, sandbox) in servers.iter().filter_map(|server| Some((&server.name, sandbox(server)?))) {
        let roots: Vec<PathBuf> = sandbox.write.iter().map(|path| real(path)).collect();
        for (name, files) in started.iter().filter(|(name, _)| *name != writer) {
            let decided = files.iter().find(|file| roots.iter().any(|root| file.starts_with(root)));
            notes.extend(decided.map(|file| {
                let file = file.display();
                format!("{name}: it is started from {file}, which the sandboxed server {writer} may change")
            }));
        }
        written.extend(sandbox.write.iter().cloned());
    }
    written.sort();
    written.dedup();
    config.notes.extend(notes);
    for entry in config.servers.values_mut() {
        let Some(sandbox) = entry.server.as_mut().ok().and_then(sandbox_mut) else { continue };
        let others = written.iter().filter(|path| !sandbox.write.contains(path));
        sandbox.written_by_others = others.cloned().collect();
    }
}

/// Package runners, and where they keep what they start: named by a variable, else below the home folder.
const RUNNERS: &[(&[&str], &str, &str)] = &[
    (&["npx", "npm"], "npm_config_cache", ".npm"),
    (&["uvx", "uv"], "UV_CACHE_DIR", ".cache/uv"),
    (&["uvx", "uv"], "UV_TOOL_DIR", ".local/share/uv"),
    (&["pipx"], "PIPX_HOME", ".local/share/pipx"),
    (&["bunx", "bun"], "BUN_INSTALL", ".bun"),
];

/// What decides what a server is, as far as it may not write that itself: its program, scripts among its arguments, what
/// its package runner keeps.
fn started_from(server: &ServerConfig) -> Vec<PathBuf> {
    let Endpoint::Stdio(child) = &server.endpoint else { return Vec::new() };
    let mut files = server.own_files().named().to_vec();
    let variable = |name: &str| child.env.get(name).map(String::as_str).filter(|value| !value.is_empty());
    if !child.is_path() {
        let places = std::env::split_paths(variable("PATH").unwrap_or_default());
        files.extend(places.map(|place| place.join(&child.command)).find(|file| file.is_file()));
    }
    let name = child.command.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    for (_, given, usual) in RUNNERS.iter().filter(|(names, ..)| names.contains(&name)) {
        let usual = || Some(Path::new(variable("HOME")?).join(usual));
        files.extend(variable(given).map(PathBuf::from).or_else(usual));
    }
    let own = child.sandbox.iter().flat_map(|sandbox| sandbox.write.iter().map(|path| real(path)));
    let own: Vec<PathBuf> = own.collect();
    // A link decides as much as what it leads to.
    let files = files.iter().flat_map(|file| [real(file), beside(file)]);
    files.filter(|file| !own.iter().any(|folder| file.starts_with(folder))).collect()
}

/// Why the rules of a sandbox do not hold: the key, what is wrong, what to do.
fn fault(sandbox: &Sandbox, ours: &[Ours]) -> Option<(&'static str, String, String)> {
    let write: Vec<(&PathBuf, PathBuf)> = sandbox.write.iter().map(|path| (path, real(path))).collect();
    for (written, path) in &write {
        let held = |ours: &&Ours| {
            ours.path.starts_with(path) || (ours.whole && path.starts_with(&ours.path) && *path != ours.path)
        };
        if let Some(Ours { what, path: ours, .. }) = ours.iter().find(held) {
            let message = format!(
                "opens {} to changes, and with it {what} {}: the server could decide what runs outside of its sandbox",
                written.display(),
                ours.display()
            );
            let help =
                "name a folder that holds nothing but what the server is to change, such as one made for it";
            return Some(("write", message, help.to_owned()));
        }
    }
    let read = sandbox.read.iter().map(|path| ("read", path, real(path)));
    let named = read.chain(write.iter().map(|(written, path)| ("write", *written, path.clone())));
    for (key, written, path) in named {
        let below = |root: &&(&PathBuf, PathBuf)| {
            let strictly = |path: &Path, root: &Path| path != root && path.starts_with(root);
            // A link on the way decides as much as what is behind it.
            strictly(&path, &root.1) || written.ancestors().any(|part| strictly(&beside(part), &root.1))
        };
        if let Some((_, root)) = write.iter().find(below) {
            let message = format!(
                "names {}, which lies below {} of `write`: the server could put a link to anything in its place",
                written.display(),
                root.display()
            );
            let help = format!("remove it from `{key}`: what lies in {} is open already", root.display());
            return Some((key, message, help));
        }
    }
    None
}

fn ours(config: &Config, env: &Env) -> Vec<Ours> {
    let mut ours = Vec::new();
    let mut add = |what, path: Option<PathBuf>, whole| {
        for path in path.into_iter().flat_map(|path| [real(&path), beside(&path)]) {
            ours.push(Ours { what, path, whole });
        }
    };
    for file in &config.files {
        add("the configuration file", Some(file.clone()), false);
    }
    add("the lockfile", config.lock_path(), false);
    add("the place of the user's configuration", env.user_config(), false);
    add("the folder of results", config.output_folder.clone(), false);
    add("the folder of what is kept for later starts", config.cache_folder.clone(), true);
    for folder in env.private_folders() {
        add("the folder of the daemon's socket and of long results", Some(folder), true);
    }
    ours
}

fn sandbox(server: &ServerConfig) -> Option<&Sandbox> {
    match &server.endpoint {
        Endpoint::Stdio(child) => child.sandbox.as_ref(),
        Endpoint::Http(_) | Endpoint::Builtin { .. } => None,
    }
}

fn sandbox_mut(server: &mut ServerConfig) -> Option<&mut Sandbox> {
    match &mut server.endpoint {
        Endpoint::Stdio(child) => child.sandbox.as_mut(),
        Endpoint::Http(_) | Endpoint::Builtin { .. } => None,
    }
}

/// A path without symbolic links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| beside(path))
}

/// The same, but for its last component.
fn beside(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Lab(tempfile::TempDir);

    impl Lab {
        fn new() -> Self {
            let lab = Self(tempfile::tempdir().unwrap());
            for name in ["conf", "run", "cache", "home/.config/toolcrib", "work/data", "work/bin", "other"] {
                fs::create_dir_all(lab.at(name)).unwrap();
            }
            lab
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }

        fn load(&self, servers: &str) -> Config {
            fs::write(self.at("conf/servers.toml"), servers).unwrap();
            let folder = |name: &str| self.at(name).to_str().unwrap().to_owned();
            let env = Env::new(
                self.at("conf"),
                [
                    ("XDG_RUNTIME_DIR", folder("run")),
                    ("XDG_CACHE_HOME", folder("cache")),
                    ("HOME", folder("home")),
                    ("TMPDIR", folder("tmp")),
                ],
            );
            Config::load(Some(&self.at("conf/servers.toml")), &env).unwrap()
        }

        /// What is wrong with a server that has this sandbox.
        fn refusal(&self, sandbox: &str) -> Option<String> {
            let config =
                self.load(&format!("[servers.box]\ncommand = \"/bin/cat\"\nsandbox = {{ {sandbox} }}\n"));
            let error = config.servers[0].server.as_ref().err()?;
            assert!(error.to_string().contains("servers.box.sandbox."), "{error}");
            Some(format!("{error} ({})", error.help().unwrap_or_default()))
        }
    }

    #[test]
    fn a_sandbox_does_not_hold_what_decides_over_it() {
        let lab = Lab::new();
        for (write, what) in [
            (".", "the configuration file"),
            ("..", "the configuration file"),
            ("/", "the configuration file"),
            ("servers.toml", "the configuration file"),
            ("toolcrib.lock", "the lockfile"),
            ("../run", "the daemon's socket"),
            ("../cache", "for later starts"),
            ("../cache/toolcrib", "for later starts"),
            ("../cache/toolcrib/launch", "for later starts"),
            ("../home", "the user's configuration"),
            ("/tmp", "opens /tmp to changes"),
        ] {
            fs::create_dir_all(lab.at("cache/toolcrib/launch")).unwrap();
            let refusal = lab.refusal(&format!("write = [\"{write}\"]")).unwrap_or_default();
            assert!(refusal.contains("sandbox.write") && refusal.contains(what), "{write}: {refusal}");
        }
        // By a link as well.
        std::os::unix::fs::symlink(lab.at("conf"), lab.at("link")).unwrap();
        assert!(lab.refusal("write = [\"../link\"]").unwrap().contains("the configuration file"));
        assert_eq!(lab.refusal("read = [\".\", \"/\"], write = [\"../work\"]"), None);
    }

    #[test]
    fn a_rule_below_a_write_folder_is_refused_in_words() {
        let lab = Lab::new();
        std::os::unix::fs::symlink("/usr", lab.at("work/out")).unwrap();
        for (sandbox, key) in [
            ("read = [\"../work/data\"], write = [\"../work\"]", "read"),
            ("read = [\"../work/none\"], write = [\"../work\"]", "read"),
            ("read = [\"../work/out/lib\"], write = [\"../work\"]", "read"),
            ("write = [\"../work\", \"../work/data\"]", "write"),
        ] {
            let refusal = lab.refusal(sandbox).unwrap_or_default();
            let help = format!("remove it from `{key}`: what lies in ");
            assert!(refusal.contains(&format!("sandbox.{key}")) && refusal.contains(&help), "{refusal}");
        }
        // A server has put a link there.
        fs::remove_dir(lab.at("work/data")).unwrap();
        std::os::unix::fs::symlink("/", lab.at("work/data")).unwrap();
        let refusal = lab.refusal("read = [\"../work/data\"], write = [\"../work\"]").unwrap();
        assert!(refusal.contains("lies below"), "{refusal}");
        assert_eq!(lab.refusal("read = [\"../work\"], write = [\"../work\"]"), None);
        // Below it as it is written only.
        assert_eq!(lab.refusal("read = [\"../work/../other\"], write = [\"../work\"]"), None);
    }

    #[test]
    fn a_server_that_another_one_decides_is_named() {
        let lab = Lab::new();
        fs::write(lab.at("work/bin/one"), "").unwrap();
        let config = lab.load(
            "[servers.box]\ncommand = \"/bin/cat\"\nsandbox = { write = [\"../work\"] }\n\
             [servers.one]\ncommand = \"../work/bin/one\"\n\
             [servers.two]\ncommand = \"/bin/sh\"\nargs = [\"../work/data/two.sh\"]\nsandbox = { read = [\"../other\"] }\n\
             [servers.same]\ncommand = \"../work/bin/one\"\nsandbox = { write = [\"../work\"] }\n\
             [servers.far]\ncommand = \"/bin/cat\"\n\
             [servers.run]\ncommand = \"npx\"\nargs = [\"-y\", \"x\"]\nenv = { npm_config_cache = \"WORK/npm\" }\n"
                .replace("WORK", lab.at("work").to_str().unwrap())
                .as_str(),
        );
        let about =
            |name: &str| config.notes.iter().filter(|note| note.starts_with(&format!("{name}: "))).count();
        // By `box`, and by `same`.
        assert_eq!(["one", "two", "run", "same", "far", "box"].map(about), [2, 2, 2, 0, 0, 0]);
        let others = |name: &str| {
            let server = config.servers[name].server.as_ref().unwrap();
            sandbox(server).unwrap().written_by_others.len()
        };
        assert_eq!([others("box"), others("two"), others("same")], [0, 1, 0]);
    }
}
