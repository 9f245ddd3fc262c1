//! Generates `docs/configuration.md` from the documented example, so that both have the same content.

use std::{fs, path::Path};

use super::EXAMPLE;

const INTRO: &str = "# Configuration\n
All keys of `servers.toml`, made from the [documented example](../servers.toml) at the root of the repository: edit that
file, then run `TOOLCRIB_WRITE_DOCS=1 cargo test -p toolcrib-core configuration_page`. In the examples a value without a `#` is the
default.\n\n";

/// Comment lines, and the keys that follow them.
#[derive(Default)]
struct Group {
    text: Vec<&'static str>,
    keys: Vec<&'static str>,
}

impl Group {
    /// Writes the keys as TOML and the comment as text; an indented comment line stays as it is.
    fn write(&self, page: &mut String) {
        if !self.keys.is_empty() {
            page.push_str(&format!("```toml\n{}\n```\n", self.keys.join("\n")));
        }
        let mut is_table = false;
        for line in &self.text {
            let line = line.trim_start_matches('#').strip_prefix(' ').unwrap_or_default();
            let indented = line.starts_with("  ");
            if indented != is_table {
                page.push_str("```\n");
                is_table = indented;
            }
            page.push_str(line);
            page.push('\n');
        }
        page.push_str(if is_table { "```\n\n" } else { "\n" });
    }
}

pub(super) fn is_comment(line: &str) -> bool {
    line == "#" || line.starts_with("# ")
}

/// The table that a line begins, commented out or not.
pub(super) fn heading(line: &str) -> Option<&str> {
    let line = line.strip_prefix('#').unwrap_or(line);
    let name = line.strip_prefix('[')?;
    (!line.contains('=') && name.ends_with(']')).then_some(line)
}

fn page(example: &'static str) -> String {
    let mut page = INTRO.to_owned();
    let mut group = Group::default();
    let mut open = 0;
    for line in example.lines().skip_while(|line| *line != "#").chain([""]) {
        let continued = open > 0;
        if !is_comment(line) {
            open += line.matches(['[', '{']).count();
            open = open.saturating_sub(line.matches([']', '}']).count());
        }
        if continued {
            group.keys.push(line);
        } else if let Some(table) = heading(line) {
            let text = Group { text: std::mem::take(&mut group.text), keys: Vec::new() };
            group.write(&mut page);
            page.push_str(&format!("## `{table}`\n"));
            text.write(&mut page);
            group = Group::default();
        } else if is_comment(line) {
            if !group.keys.is_empty() {
                std::mem::take(&mut group).write(&mut page);
            }
            group.text.push(line);
        } else if line.is_empty() {
            std::mem::take(&mut group).write(&mut page);
        } else {
            group.keys.push(line);
        }
    }
    while page.contains("\n\n\n") {
        page = page.replace("\n\n\n", "\n\n");
    }
    page.trim_end().to_owned() + "\n"
}

#[test]
fn configuration_page_is_made_from_the_example() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = page(EXAMPLE);
    if std::env::var_os("TOOLCRIB_WRITE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    let written = fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "docs/configuration.md is old: run the test with TOOLCRIB_WRITE_DOCS=1");
}
