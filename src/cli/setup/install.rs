//! `toolcrib install`: writes the entry for toolcrib into the configuration of an MCP client.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde_json::{Value, json};
use similar::{Algorithm, capture_diff_slices};
use toolcrib::{
    Env, Error,
    cli_support::{nearest, without_secrets},
    config::{ClientEntry, GatewayConfig, McpClient},
    install::{InstallChange, InstallReport, Installation},
};

use crate::cli::{
    context::Context,
    terminal::{columns, ui::Ui},
};

/// The name of the entry where no other is given.
const NAME: &str = "toolcrib";

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command line")]
pub(crate) struct Install {
    /// The client, such as claude-desktop, claude-code, cursor, vscode, codex, zed [default: list all of them, and which are
    /// here].
    client: Option<String>,
    /// The name of the entry [default: toolcrib, or toolcrib-SERVER].
    #[arg(long, value_name = "NAME", value_parser = entry_name)]
    name: Option<String>,
    /// Give the client only this server, with the plain names of its tools.
    #[arg(long, value_name = "SERVER")]
    server: Option<String>,
    /// Give the client the address of a `toolcrib serve` that runs, in place of a command that it starts.
    #[arg(long, value_name = "URL", value_parser = address, conflicts_with = "server")]
    url: Option<String>,
    /// Use the client's configuration of the project in this folder.
    #[arg(long, conflicts_with = "user")]
    project: bool,
    /// Use the client's configuration of the user (the default).
    #[arg(long)]
    user: bool,
    /// Print the entry, and write nothing.
    #[arg(long, conflicts_with_all = ["remove", "force"])]
    print: bool,
    /// Remove the entry. If nothing else has changed since, the file is as it was before, byte for byte.
    #[arg(long, conflicts_with_all = ["url", "force"])]
    remove: bool,
    /// Replace another entry of this name.
    #[arg(long)]
    force: bool,
}

impl Install {
    pub(crate) fn run(&self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let env = Env::process();
        let Some(client) = &self.client else {
            list(&env, &self.name(), context.ui);
            return Ok(ExitCode::SUCCESS);
        };
        let client = McpClient::named(client)?;
        let path = match self.project {
            true => client.project_file(env.folder())?,
            false => client.user_file(&env)?,
        };
        let at = Installation::new(client, path, self.name());
        let at = if self.project && !self.print { at.within(env.folder())? } else { at };
        if self.remove {
            let report = at.remove()?;
            self.tell(client, &at, None, &report, context.ui);
            return Ok(ExitCode::SUCCESS);
        }
        let entry = client.entry(&self.entry(context)?)?;
        if self.print {
            self.print(client, &at, &entry, context.ui);
            self.tell_of_token(client, context);
            return Ok(ExitCode::SUCCESS);
        }
        let present = at.present()?.filter(|present| *present != entry && !self.force);
        if let Some(present) = present {
            if !context.ui.json {
                for line in difference(&at.text_of(&without_secrets(present)), &at.text_of(&entry)) {
                    Ui::data(line);
                }
            }
            let what = format!("{} has another entry `{}`", at.path().display(), self.name());
            let help = "--force replaces it, --name NAME adds one of another name".to_owned();
            return Err(Error::input(what, Some(help)).into());
        }
        let report = at.write(&entry, self.force)?;
        self.tell(client, &at, Some(&entry), &report, context.ui);
        self.tell_of_token(client, context);
        Ok(ExitCode::SUCCESS)
    }

    /// Says what the entry lacks, if the address is that of the gateway of the configuration and it wants a token. The entry has
    /// none: it would lie open in a file of another program. With `[gateway.oauth]` a client gets its own.
    fn tell_of_token(&self, client: &McpClient, context: &Context<'_>) {
        let Some(url) = self.url.as_ref().and_then(|url| url.parse().ok()) else { return };
        let gateway = context.look().ok().and_then(|config| config.gateway.ok());
        let wanted = |gateway: &GatewayConfig| {
            !gateway.tokens.is_empty() && gateway.oauth.is_none() && is_address_of(gateway, &url)
        };
        if context.ui.json || !gateway.as_ref().is_some_and(wanted) {
            return;
        }
        let header = match client.is_toml() {
            true => "http_headers = { Authorization = \"Bearer TOKEN\" }",
            false => "\"headers\": { \"Authorization\": \"Bearer TOKEN\" }",
        };
        context
            .ui
            .warn(format!("the gateway wants a token: add {header} to the entry, with that of [gateway]"));
    }

    fn name(&self) -> String {
        match (&self.name, &self.server) {
            (Some(name), _) => name.clone(),
            (None, Some(server)) => format!("{NAME}-{server}"),
            (None, None) => NAME.to_owned(),
        }
    }

    /// The entry that the client gets. The client starts it in any folder, so all its paths are absolute.
    fn entry(&self, context: &Context<'_>) -> anyhow::Result<ClientEntry> {
        if let Some(url) = &self.url {
            return Ok(ClientEntry::Url(url.clone()));
        }
        if context.profile.is_some() {
            let help = "leave out --profile: `toolcrib connect` uses a daemon, and that has no profile";
            return Err(Error::input("a client cannot use a profile", Some(help.to_owned())).into());
        }
        // The entry starts it where nobody looks: it counts as used by who writes the entry.
        let config = if self.print { context.look()? } else { context.load()? };
        let Some(file) = &config.file else {
            let help = "name it: --config FILE".to_owned();
            return Err(Error::input("there is no configuration to give to a client", Some(help)).into());
        };
        let mut arguments = vec!["connect".to_owned()];
        if let Some(server) = &self.server {
            let names = || config.servers.keys().map(toolcrib::ServerName::as_str);
            if !names().any(|name| name == server) {
                let help = match nearest(server, names()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
                };
                let what = format!("no server is named `{server}` in {}", file.display());
                return Err(Error::input(what, Some(help)).into());
            }
            arguments.push(server.clone());
        }
        let file = std::path::absolute(file)?;
        let Some(file) = file.to_str() else {
            return Err(Error::input(format!("the path {} is not UTF-8", file.display()), None).into());
        };
        arguments.extend(["--config".to_owned(), file.to_owned()]);
        let mut program = program()?;
        if let Some((runner, words)) = runner(&program) {
            arguments.splice(0..0, words);
            program = in_path(runner).unwrap_or_else(|| runner.into());
        }
        Ok(ClientEntry::Command { program, arguments })
    }

    fn print(&self, client: &McpClient, at: &Installation, entry: &Value, ui: &Ui) {
        let text = at.text_of(entry);
        if ui.json {
            Ui::json(json!({"schema": 1, "client": client.name, "file": at.path(), "name": self.name(),
                "entry": entry, "text": text}));
            return;
        }
        ui.status("Entry", format!("for {}", at.path().display()));
        Ui::words(text.trim_end());
    }

    fn tell(
        &self,
        client: &McpClient,
        at: &Installation,
        entry: Option<&Value>,
        report: &InstallReport,
        ui: &Ui,
    ) {
        let (name, file) = (self.name(), at.path().display());
        if ui.json {
            Ui::json(
                json!({"schema": 1, "client": client.name, "file": at.path(), "name": name, "entry": entry,
                "change": report.change.name(), "backup": report.backup, "restored": report.restored}),
            );
            return;
        }
        let restored = if report.restored { ", which is as it was before" } else { "" };
        let (verb, text) = match report.change {
            InstallChange::Added => ("Added", format!("`{name}` to {file}")),
            InstallChange::Replaced => ("Replaced", format!("`{name}` in {file}")),
            InstallChange::Removed => ("Removed", format!("`{name}` from {file}{restored}")),
            InstallChange::Absent => ("Absent", format!("there is no `{name}` in {file}")),
            _ => ("Unchanged", format!("`{name}` is there already: {file}")),
        };
        ui.status(verb, text);
        if let Some(backup) = &report.backup {
            ui.status("Backup", backup.display().to_string());
        }
        if !matches!(report.change, InstallChange::Unchanged | InstallChange::Absent) {
            ui.status("Next", format!("restart {}: it reads the file when it starts", client.title));
        }
    }
}

/// Whether the gateway is reached at `url`, as far as its settings say.
fn is_address_of(gateway: &GatewayConfig, url: &url::Url) -> bool {
    let public = gateway.public_url.as_ref().and_then(|public| public.parse::<url::Url>().ok());
    let host: Option<std::net::IpAddr> = match url.host() {
        Some(url::Host::Domain("localhost")) => Some(std::net::Ipv4Addr::LOCALHOST.into()),
        Some(url::Host::Ipv4(ip)) => Some(ip.into()),
        Some(url::Host::Ipv6(ip)) => Some(ip.into()),
        _ => None,
    };
    let own = gateway.listen.ip();
    let here = host.is_some_and(|host| host == own || (host.is_loopback() && own.is_unspecified()));
    public.is_some_and(|public| public.origin() == url.origin())
        || (here && url.port_or_known_default() == Some(gateway.listen.port()))
}

/// All clients: whether each is here, and has an entry of that name.
fn list(env: &Env, name: &str, ui: &Ui) {
    let rows = McpClient::ALL.iter().map(|client| {
        let file = client.user_file(env).ok();
        let entry = file.as_ref().map(|file| Installation::new(client, file, name).present());
        let entry = match entry {
            Some(Ok(Some(_))) => "yes",
            Some(Err(_)) => "unreadable",
            _ => "no",
        };
        (client, client.is_found(env), entry, file)
    });
    if ui.json {
        let clients: Vec<Value> = rows
            .map(|(client, found, entry, file)| {
                json!({"client": client.name, "title": client.title, "found": found, "entry": entry == "yes",
                    "readable": entry != "unreadable", "file": file})
            })
            .collect();
        Ui::json(json!({"schema": 1, "name": name, "clients": clients}));
        return;
    }
    let head = ["CLIENT", "FOUND", "ENTRY", "FILE"].map(str::to_owned);
    let rows = rows.map(|(client, found, entry, file)| {
        let file = file.map_or_else(|| "-".to_owned(), |file| file.display().to_string());
        [client.name.to_owned(), (if found { "yes" } else { "no" }).to_owned(), entry.to_owned(), file]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    for line in columns::lines(&rows, &[]) {
        Ui::data(line);
    }
}

/// The lines of both texts, with the signs of a diff.
fn difference(before: &str, after: &str) -> Vec<String> {
    let (before, after): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let changes = capture_diff_slices(Algorithm::Myers, &before, &after);
    let changes = changes.iter().flat_map(|part| part.iter_changes(&before, &after));
    changes.map(|change| format!("{} {}", change.tag(), change.value())).collect()
}

/// The path of this program. A link in `PATH` that leads to it stays a link: it survives an upgrade.
fn program() -> Result<PathBuf, Error> {
    let own =
        env::current_exe().map_err(|error| Error::io("the path of this program is not known", error))?;
    let typed = env::args_os().next().map(PathBuf::from).unwrap_or_default();
    let is_own = |path: &Path| path.canonicalize().is_ok_and(|found| found == own);
    let paths = env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = match typed.components().count() {
        1 => env::split_paths(&paths).map(|folder| folder.join(&typed)).collect(),
        _ => std::path::absolute(&typed).into_iter().collect(),
    };
    candidates.retain(|path| path.is_absolute() && is_own(path));
    Ok(candidates.into_iter().next().unwrap_or(own))
}

/// The package runner in whose cache a program lies, and its words for this version. The cache is cleared now and then, so that
/// an entry has to name the runner.
fn runner(program: &Path) -> Option<(&'static str, Vec<String>)> {
    let package = || format!("toolcrib@{}", env!("CARGO_PKG_VERSION"));
    let mut folders = program.components().map(std::path::Component::as_os_str);
    folders.find_map(|folder| match folder.to_str()? {
        "_npx" => Some(("npx", vec!["-y".to_owned(), package()])),
        // The folders of uv's cache, wherever that is, but for the format's number.
        name if name.starts_with("archive-v") || name.starts_with("environments-v") => {
            Some(("uvx", vec![package()]))
        }
        _ => None,
    })
}

/// The path of a program in `PATH`: the programs of a desktop have another `PATH`.
fn in_path(name: &str) -> Option<PathBuf> {
    let paths = env::var_os("PATH")?;
    env::split_paths(&paths).map(|folder| folder.join(name)).find(|file| file.is_absolute() && file.is_file())
}

/// A name that every client takes.
fn entry_name(text: &str) -> Result<String, String> {
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(is_legal) {
        true => Ok(text.to_owned()),
        false => Err("must have 1 to 64 letters, digits, `-` and `_`".to_owned()),
    }
}

fn address(text: &str) -> Result<String, String> {
    match text.parse::<url::Url>() {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(text.to_owned()),
        _ => Err("must be an address such as http://127.0.0.1:7171/mcp".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_the_runner_of_a_cache() {
        let runner = |path: &str| runner(Path::new(path)).map(|(runner, words)| (runner, words.join(" ")));
        let version = env!("CARGO_PKG_VERSION");
        let uv = Some(("uvx", format!("toolcrib@{version}")));
        assert_eq!(runner("/home/a/.cache/uv/archive-v0/x1y2/bin/toolcrib"), uv);
        assert_eq!(runner("/tmp/uv/environments-v2/toolcrib-1/bin/toolcrib"), uv);
        let npx = Some(("npx", format!("-y toolcrib@{version}")));
        assert_eq!(runner("/home/a/.npm/_npx/12ab/node_modules/toolcrib-linux-x64/bin/toolcrib"), npx);
        assert_eq!(runner("/home/a/.local/bin/toolcrib"), None);
    }
}
