//! Recognises package runners, and whether a direct start is allowed, from the command line alone.
//!
//! The meaning of options is that of npm 11, uv 0.13 and pipx 1.8. An option that is not listed here may change what
//! is started: then it is left to the runner.

use std::path::Path;

/// A command that finds, perhaps installs, and starts a package's program.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Runner {
    /// Its command: `npx`, `uvx`, `uv run`, `pipx run`, `bunx`.
    pub name: &'static str,
    /// When it looks for a newer version.
    pub freshness: Freshness,
    /// The arguments that belong to the program begin here.
    pub(super) rest: usize,
}

/// When a runner looks for a newer version of a package that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Freshness {
    /// Never: the version is given.
    Pinned,
    /// It does not, as long as it has one that will do.
    Cached,
    /// At each start; also if this is unknown.
    Newest,
}

/// The options of one runner that do not change how its program is found from one start to the next.
struct Grammar {
    flags: &'static [&'static str],
    /// Followed by a value.
    valued: &'static [&'static str],
    /// Followed by the name of a package.
    packages: &'static [&'static str],
    freshness: fn(&str) -> Freshness,
}

const NPX: Grammar = Grammar {
    flags: &["-y", "--yes", "-q", "--quiet", "--silent", "--offline", "--prefer-offline"],
    valued: &[],
    packages: &["-p", "--package"],
    freshness: npm,
};
const UV: Grammar = Grammar {
    flags: &[
        "-q",
        "--quiet",
        "--offline",
        "--no-progress",
        "--no-config",
        "--no-project",
        "--no-sync",
        "--frozen",
        "--locked",
        "--no-dev",
        "--all-extras",
        "--managed-python",
        "--no-managed-python",
        "-m",
        "--module",
    ],
    valued: &["-p", "--python", "--directory", "--package", "--extra", "--group", "--color"],
    packages: &["--from", "--with", "-w"],
    freshness: pypi,
};
const PIPX: Grammar =
    Grammar { flags: &["-q", "--quiet"], valued: &["--python"], packages: &["--spec"], freshness: pypi };

impl Runner {
    /// The runner that a command line starts, if it starts one.
    pub fn of(command: &Path, args: &[String]) -> Option<Self> {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        match command.file_name()?.to_str()? {
            "npx" => Some(Self::read("npx", &NPX, &words, 0)),
            "uvx" => Some(Self::read("uvx", &UV, &words, 0)),
            "uv" => {
                // Options that hold for all of its commands come first, `--directory` above all.
                let (_, at) = UV.options(&words, 0)?;
                match words.get(at..)? {
                    ["run", ..] => Some(Self::read("uv run", &UV, &words, at + 1)),
                    ["tool", "run", ..] => Some(Self::read("uvx", &UV, &words, at + 2)),
                    _ => None,
                }
            }
            "pipx" => match words[..] {
                ["run", ..] => Some(Self::read("pipx run", &PIPX, &words, 1)),
                _ => None,
            },
            "npm" | "pnpm" | "yarn" => match words.first() {
                Some(&("exec" | "x" | "dlx")) => Some(Self::doubtful("npx")),
                _ => None,
            },
            "bunx" => Some(Self::doubtful("bunx")),
            "bun" if words.first() == Some(&"x") => Some(Self::doubtful("bunx")),
            _ => None,
        }
    }

    fn doubtful(name: &'static str) -> Self {
        Self { name, freshness: Freshness::Newest, rest: 0 }
    }

    /// Options, then the program: itself a package unless options have named one.
    fn read(name: &'static str, grammar: &Grammar, words: &[&str], from: usize) -> Self {
        let Some((packages, at)) = grammar.options(words, from) else { return Self::doubtful(name) };
        let Some(program) = words.get(at) else { return Self::doubtful(name) };
        let mut freshness = packages.iter().map(|spec| (grammar.freshness)(spec)).max();
        match name {
            // `--with` makes an environment of one run, which is removed with it.
            "uv run" if !packages.is_empty() => freshness = Some(Freshness::Newest),
            // Its project and its lock file decide, and files prove that they are as they were.
            "uv run" => freshness = Some(Freshness::Cached),
            _ if freshness.is_none() => freshness = Some((grammar.freshness)(program)),
            // `--with` adds to the package, `--from` and `--package` replace it.
            "uvx" if !words[from..at].iter().any(|word| word.starts_with("--from")) => {
                freshness = freshness.max(Some((grammar.freshness)(program)));
            }
            _ => {}
        }
        Self { name, freshness: freshness.unwrap_or(Freshness::Newest), rest: at + 1 }
    }
}

impl Grammar {
    /// The packages among the options from `at` on, and where the options end. `None`: one is not known.
    fn options<'a>(&self, words: &[&'a str], mut at: usize) -> Option<(Vec<&'a str>, usize)> {
        let mut packages = Vec::new();
        while let Some(word) = words.get(at).copied().filter(|word| word.starts_with('-')) {
            at += 1;
            if word == "--" {
                break;
            }
            if self.flags.contains(&word) {
                continue;
            }
            let (option, joined) = match word.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (word, None),
            };
            let (valued, package) = (self.valued.contains(&option), self.packages.contains(&option));
            if !valued && !package {
                return None;
            }
            let value = match joined {
                Some(value) => value,
                None => {
                    at += 1;
                    *words.get(at - 1)?
                }
            };
            packages.extend(Some(value).filter(|_| package));
        }
        Some((packages, at))
    }
}

/// Freshness of a package as npm writes it: `name`, `@scope/name`, each with `@version`, `@range` or `@tag`. A tag is looked up
/// at each start, and so is a package from elsewhere.
fn npm(spec: &str) -> Freshness {
    let (scope, name) = match spec.strip_prefix('@') {
        Some(scoped) => match scoped.split_once('/') {
            Some((scope, name)) => (scope, name),
            None => return Freshness::Newest,
        },
        None => ("", spec),
    };
    let (name, version) = name.split_once('@').unwrap_or((name, ""));
    let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if name.is_empty() || name.starts_with('.') || !plain(name) || !plain(scope) {
        return Freshness::Newest;
    }
    let number = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
    let (core, _) = version.split_once(['-', '+']).unwrap_or((version, ""));
    let range = |c: char| c.is_ascii_digit() || "^~<>=*".contains(c);
    match version.chars().next() {
        None => Freshness::Cached,
        Some(_) if core.split('.').count() == 3 && core.split('.').all(number) => Freshness::Pinned,
        Some(first) if range(first) && !version.contains(['/', ':']) => Freshness::Cached,
        Some(_) => Freshness::Newest,
    }
}

/// Freshness of a package as uv and pipx write it: `name`, `name[extra]`, `name@version`, `name==version`, `name>=version`.
fn pypi(spec: &str) -> Freshness {
    let name = spec.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(spec.len());
    let (name, rest) = spec.split_at(name);
    let file = [".py", ".whl", ".gz", ".zip"].iter().any(|ending| name.ends_with(ending));
    if name.is_empty() || name.starts_with('.') || file || rest.contains(['/', ':']) {
        return Freshness::Newest;
    }
    let rest = match rest.strip_prefix('[') {
        Some(extras) => extras.split_once(']').map_or("@", |(_, rest)| rest),
        None => rest,
    };
    let exact = rest.strip_prefix("==").or_else(|| rest.strip_prefix('@'));
    match exact.map(str::trim) {
        None => Freshness::Cached,
        Some(version) if version.contains(['*', ',', '<', '>']) => Freshness::Cached,
        Some(version) if version.starts_with(|c: char| c.is_ascii_digit()) => Freshness::Pinned,
        Some(_) => Freshness::Newest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(&'static str, Freshness, usize)> {
        let mut words = line.split(' ');
        let command = Path::new(words.next().unwrap());
        let args: Vec<String> = words.map(str::to_owned).collect();
        Runner::of(command, &args).map(|runner| (runner.name, runner.freshness, runner.rest))
    }

    #[test]
    fn runners_are_recognised_by_their_command_lines() {
        use Freshness::{Cached, Newest, Pinned};
        for (line, expected) in [
            ("npx -y @scope/server /data", Some(("npx", Cached, 2))),
            ("/usr/bin/npx server@1.2.3 --port 1", Some(("npx", Pinned, 1))),
            ("npx -y server@1.2.3-rc.1", Some(("npx", Pinned, 2))),
            ("npx -y server@^1.2", Some(("npx", Cached, 2))),
            ("npx -y --package=server@2.0.0 -- run-it x", Some(("npx", Pinned, 4))),
            ("npx -p a@1.0.0 -p b run-it", Some(("npx", Cached, 5))),
            ("npx -y server@latest", Some(("npx", Newest, 2))),
            ("npx -y @scope/server@next", Some(("npx", Newest, 2))),
            ("npx user/repo", Some(("npx", Newest, 1))),
            ("npx github:user/repo", Some(("npx", Newest, 1))),
            ("npx ./here", Some(("npx", Newest, 1))),
            ("npx -c server", Some(("npx", Newest, 0))),
            ("npx", Some(("npx", Newest, 0))),
            ("npm exec server", Some(("npx", Newest, 0))),
            ("npm run server", None),
            ("uvx mcp-server-time --local-timezone UTC", Some(("uvx", Cached, 1))),
            ("uvx mcp-server-time@2026.1.2", Some(("uvx", Pinned, 1))),
            ("uvx mcp-server-time@latest", Some(("uvx", Newest, 1))),
            ("uvx --from server[cli]==1.2 server-cli x", Some(("uvx", Pinned, 3))),
            ("uvx --with mcp<2 server==1.0", Some(("uvx", Cached, 3))),
            ("uvx --from git+https://host/repo server", Some(("uvx", Newest, 3))),
            ("uvx --refresh server", Some(("uvx", Newest, 0))),
            ("uv tool run server@1.0", Some(("uvx", Pinned, 3))),
            ("uv --directory /src run server.py --x", Some(("uv run", Cached, 4))),
            ("uv run --with mcp==1.0 python -m server", Some(("uv run", Newest, 4))),
            ("uv run --frozen python -m server", Some(("uv run", Cached, 3))),
            ("uv run --project /src server", Some(("uv run", Newest, 0))),
            ("uv run --with ./here server", Some(("uv run", Newest, 4))),
            ("uv run --env-file .env server", Some(("uv run", Newest, 0))),
            ("uv pip install server", None),
            ("pipx run server", Some(("pipx run", Cached, 2))),
            ("pipx run --spec server==1.0 server-cli", Some(("pipx run", Pinned, 4))),
            ("pipx list", None),
            ("bunx server", Some(("bunx", Newest, 0))),
            ("node server.js", None),
            ("python -m server", None),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
    }
}
