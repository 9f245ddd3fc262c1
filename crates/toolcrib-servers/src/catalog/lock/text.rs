//! The text of a lockfile: one form only, and safe to read.

use super::{LockFile, LockedList, LockedTool, SCHEMA, ToolText};
use crate::{catalog::ServerSoftware, package::Package, tool::is_unseen};

const HEAD: &str = "# The tools of each server as they were reviewed: `toolcrib lock` writes this file, `toolcrib lock --diff`
# compares, and `--locked` refuses servers that offer anything else or come from another version of their package.
";

const ASKED: &str = "# What the server lists otherwise to a client that it can ask (sampling, elicitation, roots), as with `toolcrib serve`.
";

impl std::fmt::Display for LockFile {
    /// The text of the file.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{HEAD}schema = {SCHEMA}")?;
        for (name, server) in &self.servers {
            writeln!(f, "\n[servers.{}]", quoted(name))?;
            if let Some(ServerSoftware { name, version }) = &server.software {
                writeln!(f, "software = {{ name = {}, version = {} }}", quoted(name), quoted(version))?;
            }
            if let Some(Package { ecosystem, name, version, .. }) = &server.package {
                let [ecosystem, name, version] =
                    [&ecosystem.to_string(), name, version].map(|text| quoted(text));
                writeln!(f, "package = {{ ecosystem = {ecosystem}, name = {name}, version = {version} }}")?;
            }
            let table = format!("servers.{}", quoted(name));
            write_list(f, &server.plain, &table)?;
            if !server.asked.tools.is_empty() {
                writeln!(f, "\n{ASKED}[{table}.asked]")?;
                write_list(f, &server.asked, &format!("{table}.asked"))?;
            }
        }
        Ok(())
    }
}

fn write_list(f: &mut std::fmt::Formatter<'_>, list: &LockedList, table: &str) -> std::fmt::Result {
    f.write_str("tools = [\n")?;
    for LockedTool { name, sha256 } in &list.tools {
        writeln!(f, "    {{ name = {}, sha256 = {} }},", quoted(name), quoted(sha256))?;
    }
    f.write_str("]\n")?;
    for (tool, ToolText { description, schemas }) in &list.texts {
        writeln!(f, "\n[{table}.texts.{}]", quoted(tool))?;
        writeln!(f, "description = {}\nschemas = {}", of_lines(description), of_lines(schemas))?;
    }
    Ok(())
}

/// A text as TOML that is safe to read: control characters and invisible ones are escapes.
fn quoted(text: &str) -> String {
    let mut shown = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => shown.extend(['\\', letter]),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            letter if is_unseen(letter) => shown.push_str(&format!("\\U{:08X}", u32::from(letter))),
            letter => shown.push(letter),
        }
    }
    shown + "\""
}

/// The same, in several lines where the text has them, so that a change is one of lines.
fn of_lines(text: &str) -> String {
    let is_plain = !text.contains("'''") && !text.ends_with('\'') && !text.contains(is_unseen);
    match text.contains('\n') {
        true if is_plain => format!("'''\n{text}'''"),
        true => {
            let lines: Vec<String> = text.split('\n').map(quoted).collect();
            let lines: Vec<&str> = lines.iter().map(|line| &line[1..line.len() - 1]).collect();
            format!("\"\"\"\n{}\"\"\"", lines.join("\n"))
        }
        false => quoted(text),
    }
}
