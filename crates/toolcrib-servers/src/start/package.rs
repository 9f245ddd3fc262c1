//! Package runners: programs such as `npx` and `uvx`, which download a package before they run it.

use std::path::Path;

use crate::config::StdioConfig;

/// A runner, as its command line begins.
struct Runner {
    /// Name of the program, and of its subcommand.
    words: &'static [&'static str],
    /// Options whose value names a package, in place of the first argument that is no option.
    packages: &'static [&'static str],
    /// Other options with a value of their own.
    values: &'static [&'static str],
}

/// From the manuals of npm 11, uv 0.9, pipx 1.8, bun 1.3, pnpm 10 and yarn 4. An option that is missing here can make
/// two packages count as one, which costs time and nothing else.
const RUNNERS: &[Runner] = &[
    Runner { words: &["npx"], packages: NPM, values: NPM_VALUES },
    Runner { words: &["npm", "exec"], packages: NPM, values: NPM_VALUES },
    Runner { words: &["npm", "x"], packages: NPM, values: NPM_VALUES },
    Runner { words: &["pnpm", "dlx"], packages: &["--package"], values: &["-C", "--dir", "--reporter"] },
    Runner { words: &["pnpx"], packages: &["--package"], values: &["-C", "--dir", "--reporter"] },
    Runner { words: &["yarn", "dlx"], packages: NPM, values: &[] },
    Runner { words: &["bunx"], packages: NPM, values: &[] },
    Runner { words: &["bun", "x"], packages: NPM, values: &[] },
    Runner { words: &["uvx"], packages: UV, values: UV_VALUES },
    Runner { words: &["uv", "tool", "run"], packages: UV, values: UV_VALUES },
    Runner { words: &["uv", "run"], packages: UV, values: UV_VALUES },
    Runner {
        words: &["pipx", "run"],
        packages: &["--spec"],
        values: &["--python", "--pip-args", "--index-url"],
    },
];

const NPM: &[&str] = &["-p", "--package"];
const NPM_VALUES: &[&str] = &["-c", "--call", "-w", "--workspace", "--registry", "--cache", "--prefix"];
const UV: &[&str] =
    &["--from", "--with", "--with-editable", "--with-requirements", "--directory", "--project"];
const UV_VALUES: &[&str] = &[
    "-p",
    "--python",
    "-i",
    "--index",
    "--index-url",
    "--default-index",
    "--extra-index-url",
    "--cache-dir",
    "--config-file",
    "--env-file",
    "--group",
    "--extra",
    "-m",
    "--module",
];

/// The command of a package runner for messages, such as `npx some-package`. `None`: `spec` runs no package.
pub(super) fn package(spec: &StdioConfig) -> Option<String> {
    let name = Path::new(&spec.command).file_stem()?.to_str()?;
    let is = |runner: &&Runner| {
        let (program, subcommand) =
            runner.words.split_first().map_or(("", &[][..]), |(name, rest)| (*name, rest));
        program == name
            && spec.args.iter().map(String::as_str).take(subcommand.len()).eq(subcommand.iter().copied())
    };
    let runner = RUNNERS.iter().find(is)?;
    let mut words: Vec<&str> = Vec::new();
    let mut named = false;
    let mut arguments = spec.args.iter().map(String::as_str).skip(runner.words.len() - 1);
    while let Some(argument) = arguments.next() {
        let (option, value) =
            argument.split_once('=').map_or((argument, None), |(name, value)| (name, Some(value)));
        if runner.packages.contains(&option) {
            named |= !option.starts_with("--with");
            words.extend(value.or_else(|| arguments.next()));
        } else if runner.values.contains(&option) {
            if value.is_none() {
                arguments.next();
            }
        } else if !argument.starts_with('-') {
            if !named {
                words.push(argument);
            }
            break;
        }
    }
    (!words.is_empty()).then(|| format!("{} {}", runner.words.join(" "), words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_found_behind_the_options_of_its_runner() {
        let cases = [
            ("npx -y @scope/one@1.2 /data", "npx @scope/one@1.2"),
            ("/usr/bin/npx --yes --registry http://r -p a -p=b tool --flag", "npx a b"),
            ("npm exec --yes one -- --port 1", "npm exec one"),
            ("bunx --bun one", "bunx one"),
            ("bun x one two", "bun x one"),
            ("pnpm dlx one", "pnpm dlx one"),
            ("uvx one --timeout 5", "uvx one"),
            ("uvx --python 3.12 --from git+http://g/one --with two one-server", "uvx git+http://g/one two"),
            ("uvx --with two one", "uvx two one"),
            ("uv tool run one", "uv tool run one"),
            ("uv --quiet run one", ""),
            ("uv run --directory /srv/one server.py", "uv run /srv/one"),
            ("pipx run --spec one==1 tool", "pipx run one==1"),
            ("pipx list", ""),
            ("node npx", ""),
            ("npx", ""),
            ("npm start", ""),
        ];
        for (line, wanted) in cases {
            let mut words = line.split(' ');
            let command = words.next().unwrap();
            let spec = StdioConfig::new(command, words.map(ToOwned::to_owned).collect(), "/");
            assert_eq!(package(&spec).unwrap_or_default(), wanted, "{line}");
        }
    }
}
