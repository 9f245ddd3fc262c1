//! The MCP clients whose configuration files are known: where these are, and how an entry for a server is written.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::{
    config::env::Env,
    error::{Error, Result, nearest},
};

/// A program that uses MCP servers, and reads from a file which.
#[derive(Debug)]
#[non_exhaustive]
pub struct McpClient {
    /// The name by which users choose it on the command line.
    pub name: &'static str,
    /// Its name in a sentence.
    pub title: &'static str,
    /// The key of the table of servers in its file.
    pub table: &'static str,
    /// Where the file of a user is.
    user: Place,
    /// Where the file of a project is, from the folder of the project.
    project: Option<&'static str>,
    /// Folders in the home folder that show that its user has this client.
    marks: &'static [&'static str],
    form: EntryForm,
}

/// A place in a user's home folder.
#[derive(Debug)]
enum Place {
    /// From `$VARIABLE`, or else from a folder of the home folder.
    Home(Option<&'static str>, &'static str, &'static str),
    /// From the folder in which applications of this system keep their files.
    Application(&'static str),
    /// From `$XDG_CONFIG_HOME` or `~/.config`, on all systems.
    Config(&'static str),
}

/// How an entry of a client is written.
#[derive(Debug)]
struct EntryForm {
    /// `type` of a server that is a command, if it has one.
    command_type: Option<&'static str>,
    /// The key of an address, with `type` if it has one. `None`: the client takes commands alone.
    url: Option<(&'static str, Option<&'static str>)>,
    /// Whether the tools have to be named that may be used.
    lists_tools: bool,
}

/// The entry of most clients.
const PLAIN: EntryForm = EntryForm { command_type: None, url: Some(("url", None)), lists_tools: false };
/// That of clients which have each entry say what it is.
const TYPED: EntryForm =
    EntryForm { command_type: Some("stdio"), url: Some(("url", Some("http"))), lists_tools: false };

/// The entry that a client gets: a program, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientEntry {
    /// It starts this program.
    Command {
        /// The program, as an absolute path: clients have a `PATH` of their own.
        program: PathBuf,
        /// Its arguments.
        arguments: Vec<String>,
    },
    /// It connects to this address, by streamable HTTP.
    Url(String),
}

impl McpClient {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self {
            name: "claude-desktop",
            title: "Claude Desktop",
            table: "mcpServers",
            user: Place::Application("Claude/claude_desktop_config.json"),
            project: None,
            marks: &[],
            form: EntryForm { url: None, ..PLAIN },
        },
        Self {
            name: "claude-code",
            title: "Claude Code",
            table: "mcpServers",
            user: Place::Home(Some("CLAUDE_CONFIG_DIR"), "", ".claude.json"),
            project: Some(".mcp.json"),
            marks: &[".claude"],
            form: TYPED,
        },
        Self {
            name: "cursor",
            title: "Cursor",
            table: "mcpServers",
            user: Place::Home(None, ".cursor", "mcp.json"),
            project: Some(".cursor/mcp.json"),
            marks: &[],
            form: PLAIN,
        },
        Self {
            name: "vscode",
            title: "VS Code",
            table: "servers",
            user: Place::Application("Code/User/mcp.json"),
            project: Some(".vscode/mcp.json"),
            marks: &[".vscode"],
            form: TYPED,
        },
        Self {
            name: "vscode-insiders",
            title: "VS Code Insiders",
            table: "servers",
            user: Place::Application("Code - Insiders/User/mcp.json"),
            project: Some(".vscode/mcp.json"),
            marks: &[".vscode-insiders"],
            form: TYPED,
        },
        Self {
            name: "codex",
            title: "Codex",
            table: "mcp_servers",
            user: Place::Home(Some("CODEX_HOME"), ".codex", "config.toml"),
            project: Some(".codex/config.toml"),
            marks: &[],
            form: PLAIN,
        },
        Self {
            name: "zed",
            title: "Zed",
            table: "context_servers",
            user: Place::Config("zed/settings.json"),
            project: Some(".zed/settings.json"),
            marks: &[],
            form: PLAIN,
        },
        Self {
            name: "windsurf",
            title: "Windsurf",
            table: "mcpServers",
            user: Place::Home(None, ".codeium/windsurf", "mcp_config.json"),
            project: None,
            marks: &[],
            form: EntryForm { url: Some(("serverUrl", None)), ..PLAIN },
        },
        Self {
            name: "gemini-cli",
            title: "Gemini CLI",
            table: "mcpServers",
            user: Place::Home(None, ".gemini", "settings.json"),
            project: Some(".gemini/settings.json"),
            marks: &[],
            form: EntryForm { url: Some(("httpUrl", None)), ..PLAIN },
        },
        Self {
            name: "copilot-cli",
            title: "GitHub Copilot CLI",
            table: "mcpServers",
            user: Place::Home(None, ".copilot", "mcp-config.json"),
            project: None,
            marks: &[],
            form: EntryForm { lists_tools: true, ..TYPED },
        },
        Self {
            name: "kiro",
            title: "Kiro",
            table: "mcpServers",
            user: Place::Home(None, ".kiro", "settings/mcp.json"),
            project: Some(".kiro/settings/mcp.json"),
            marks: &[],
            form: PLAIN,
        },
        Self {
            name: "lm-studio",
            title: "LM Studio",
            table: "mcpServers",
            user: Place::Home(None, ".lmstudio", "mcp.json"),
            project: None,
            marks: &[],
            form: PLAIN,
        },
    ];

    /// The client of that name.
    ///
    /// # Errors
    /// [`Error::Input`] with the names that there are.
    pub fn named(name: &str) -> Result<&'static Self> {
        Self::ALL.iter().find(|client| client.name == name).ok_or_else(|| {
            let names = || Self::ALL.iter().map(|client| client.name);
            let help = match nearest(name, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are: {}", names().collect::<Vec<_>>().join(", ")),
            };
            Error::input(format!("no MCP client `{name}` is known"), Some(help))
        })
    }

    /// Whether its file is TOML; else it is JSON, with comments where the client allows them.
    pub fn is_toml(&self) -> bool {
        self.table == "mcp_servers"
    }

    /// The files that a user may have, the usual one first. None: `HOME` is not set.
    pub(super) fn user_files(&self, env: &Env) -> Vec<PathBuf> {
        let home = env.folder_of("HOME");
        let config = env.folder_of("XDG_CONFIG_HOME").or_else(|| Some(home.as_ref()?.join(".config")));
        match self.user {
            Place::Home(variable, folder, file) => {
                let named = variable.and_then(|variable| env.folder_of(variable));
                let folder = named.or_else(|| Some(home?.join(folder)));
                folder.map(|folder| folder.join(file)).into_iter().collect()
            }
            Place::Config(file) => config.map(|config| config.join(file)).into_iter().collect(),
            Place::Application(file) => {
                let mac = home.map(|home| home.join("Library/Application Support").join(file));
                let other = config.map(|config| config.join(file));
                let both = if cfg!(target_os = "macos") { [mac, other] } else { [other, mac] };
                both.into_iter().flatten().collect()
            }
        }
    }

    /// The file of the user: the one that is there, or else the usual one.
    ///
    /// # Errors
    /// [`Error::Input`]: the home folder is not known.
    pub fn user_file(&self, env: &Env) -> Result<PathBuf> {
        let files = self.user_files(env);
        let found = files.iter().find(|file| file.is_file()).or(files.first());
        found.cloned().ok_or_else(|| {
            Error::input("the home folder is not known", Some("set HOME to its absolute path".to_owned()))
        })
    }

    /// The file of the project in `folder`.
    ///
    /// # Errors
    /// [`Error::Input`]: the client has none.
    pub fn project_file(&self, folder: &Path) -> Result<PathBuf> {
        self.project.map(|place| folder.join(place)).ok_or_else(|| {
            let what = format!("{} has no configuration of a project", self.title);
            Error::input(what, Some("leave out --project: its configuration is that of the user".to_owned()))
        })
    }

    /// Whether the user seems to have this client: its file, or the folder in which that would be.
    pub fn is_found(&self, env: &Env) -> bool {
        let home = env.folder_of("HOME");
        let is_home = |folder: &Path| home.as_deref() == Some(folder);
        let files = self.user_files(env);
        let folders = files.iter().filter_map(|file| file.parent()).filter(|folder| !is_home(folder));
        files.iter().any(|file| file.is_file())
            || folders.clone().any(Path::is_dir)
            || home.is_some_and(|home| self.marks.iter().any(|mark| home.join(mark).is_dir()))
    }

    /// The entry as its file has it.
    ///
    /// # Errors
    /// [`Error::Input`]: the client takes no address.
    pub fn entry(&self, entry: &ClientEntry) -> Result<Value> {
        let EntryForm { command_type, url, lists_tools } = self.form;
        let mut written = serde_json::Map::new();
        match entry {
            ClientEntry::Command { program, arguments } => {
                written.extend(command_type.map(|kind| ("type".to_owned(), kind.into())));
                written.insert("command".to_owned(), program.display().to_string().into());
                written.insert("args".to_owned(), arguments.clone().into());
            }
            ClientEntry::Url(address) => {
                let Some((key, kind)) = url else {
                    let what = format!("{} takes no address of a server in its file", self.title);
                    let help = "leave out --url: it starts `toolcrib connect` then".to_owned();
                    return Err(Error::input(what, Some(help)));
                };
                written.extend(kind.map(|kind| ("type".to_owned(), kind.into())));
                written.insert(key.to_owned(), address.clone().into());
            }
        }
        if lists_tools {
            written.insert("tools".to_owned(), json!(["*"]));
        }
        Ok(Value::Object(written))
    }
}
