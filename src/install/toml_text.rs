//! Entries in the text of a TOML file. All other text stays as it is.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, RawString, Table, TableLike};

use super::TextProblem;

/// Some editors write it at the beginning.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// The text of a file with this entry alone.
pub(crate) fn alone(table: &str, name: &str, entry: &Value) -> String {
    let mut document = DocumentMut::new();
    document.insert(table, Item::Table(servers_table()));
    if let Some(servers) = document[table].as_table_like_mut() {
        servers.insert(name, Item::Table(entry_table(entry)));
    }
    document.to_string()
}

pub(crate) fn find(text: &str, table: &str, name: &str) -> Result<Option<Value>, TextProblem> {
    let mut document = parse(text)?;
    let entry = servers(&mut document, table)?.and_then(|servers| servers.get(name).map(value));
    Ok(entry)
}

pub(crate) fn with(text: &str, table: &str, name: &str, entry: &Value) -> Result<String, TextProblem> {
    let mut document = parse(text)?;
    // What is said before the first table belongs to the file, and stays at its beginning.
    if document.is_empty() && !text.trim().is_empty() {
        let gap = if text.ends_with('\n') { "\n" } else { "\n\n" };
        return Ok(as_before(text, format!("{text}{gap}{}", alone(table, name, entry))));
    }
    if servers(&mut document, table)?.is_none() {
        document.insert(table, Item::Table(servers_table()));
    }
    if let Some(servers) = servers(&mut document, table)? {
        let item = match servers.get(name).is_some_and(Item::is_table) || !is_inline(servers) {
            true => Item::Table(entry_table(entry)),
            // A table in braces has no sections in it.
            false => Item::Value(entry_table(entry).into_inline_table().into()),
        };
        servers.insert(name, item);
    }
    Ok(as_before(text, document.to_string()))
}

pub(crate) fn without(text: &str, table: &str, name: &str) -> Result<String, TextProblem> {
    let mut document = parse(text)?;
    let removed = servers(&mut document, table)?.and_then(|servers| servers.remove(name));
    if let Some(Item::Table(removed)) = &removed {
        let prefix = removed.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
        keep_comments(&mut document, removed.position(), not_its_own(prefix));
    }
    Ok(as_before(text, document.to_string()))
}

/// The comments before the head of a table that an empty line sets apart from it.
fn not_its_own(prefix: &str) -> &str {
    let mut end = 0;
    let mut at = 0;
    for line in prefix.split_inclusive('\n') {
        at += line.len();
        if line.trim().is_empty() && line.ends_with('\n') {
            end = at;
        }
    }
    prefix[..end].trim_end_matches(['\n', '\r', ' ', '\t'])
}

/// Puts comments before the table that follows a place, or at the end.
fn keep_comments(document: &mut DocumentMut, place: Option<isize>, comments: &str) {
    if comments.trim().is_empty() {
        return;
    }
    fn heads(table: &Table, found: &mut Vec<isize>) {
        if !table.is_implicit() && !table.is_dotted() {
            found.extend(table.position());
        }
        for (_, item) in table {
            match item {
                Item::Table(table) => heads(table, found),
                Item::ArrayOfTables(tables) => tables.iter().for_each(|table| heads(table, found)),
                Item::None | Item::Value(_) => {}
            }
        }
    }
    fn put(table: &mut Table, place: isize, comments: &str) {
        if table.position() == Some(place) && !table.is_implicit() && !table.is_dotted() {
            let prefix = table.decor().prefix().and_then(RawString::as_str).unwrap_or("\n").to_owned();
            let gap = if prefix.starts_with(['\n', '\r']) { "\n" } else { "\n\n" };
            table.decor_mut().set_prefix(format!("{comments}{gap}{prefix}"));
            return;
        }
        for (_, item) in table.iter_mut() {
            match item {
                Item::Table(table) => put(table, place, comments),
                Item::ArrayOfTables(tables) => {
                    tables.iter_mut().for_each(|table| put(table, place, comments));
                }
                Item::None | Item::Value(_) => {}
            }
        }
    }
    let mut found = Vec::new();
    heads(document, &mut found);
    let next = found.into_iter().filter(|found| place.is_some_and(|place| *found > place)).min();
    match next {
        Some(next) => put(document, next, comments),
        None => {
            let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
            let gap = if trailing.is_empty() || trailing.starts_with(['\n', '\r']) { "\n" } else { "\n\n" };
            document.set_trailing(format!("{comments}{gap}{trailing}"));
        }
    }
}

/// `after` with the ends of lines and the mark at the beginning that the text had before.
fn as_before(before: &str, after: String) -> String {
    let is_dos = before.contains("\r\n") && !before.replace("\r\n", "").contains('\n');
    let after = if is_dos { after.replace("\r\n", "\n").replace('\n', "\r\n") } else { after };
    match before.starts_with(BYTE_ORDER_MARK) && !after.starts_with(BYTE_ORDER_MARK) {
        true => format!("{BYTE_ORDER_MARK}{after}"),
        false => after,
    }
}

fn parse(text: &str) -> Result<DocumentMut, TextProblem> {
    text.parse().map_err(|error: toml_edit::TomlError| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        TextProblem { line, column, what: error.message().trim().replace('\n', ", ") }
    })
}

fn servers<'a>(
    document: &'a mut DocumentMut,
    table: &str,
) -> Result<Option<&'a mut dyn TableLike>, TextProblem> {
    match document.get_mut(table) {
        None => Ok(None),
        Some(item) => {
            let problem = || TextProblem::new(format!("`{table}` is not a table"));
            item.as_table_like_mut().map(Some).ok_or_else(problem)
        }
    }
}

fn is_inline(table: &dyn TableLike) -> bool {
    table.iter().any(|(_, item)| item.is_value()) && !table.iter().any(|(_, item)| item.is_table())
}

/// A table without a head of its own: `[mcp_servers.NAME]` is enough.
fn servers_table() -> Table {
    let mut table = Table::new();
    table.set_implicit(true);
    table
}

fn entry_table(entry: &Value) -> Table {
    let fields = entry.as_object().into_iter().flatten();
    fields.filter_map(|(key, value)| Some((key.as_str(), Item::Value(item(value)?)))).collect()
}

/// The value in TOML. `None`: it is null, which TOML does not have.
fn item(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        Value::String(text) => text.into(),
        Value::Array(items) => items.iter().filter_map(item).collect::<Array>().into(),
        Value::Object(fields) => {
            let fields = fields.iter().filter_map(|(key, value)| Some((key.as_str(), item(value)?)));
            fields.collect::<InlineTable>().into()
        }
    })
}

fn value(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(present) => plain(present),
        Item::Table(table) => table.iter().map(|(key, item)| (key.to_owned(), value(item))).collect(),
        Item::ArrayOfTables(tables) => {
            tables.iter().map(|table| value(&Item::Table(table.clone()))).collect()
        }
    }
}

fn plain(value: &toml_edit::Value) -> Value {
    use toml_edit::Value as Toml;
    match value {
        Toml::String(text) => text.value().as_str().into(),
        Toml::Integer(number) => (*number.value()).into(),
        Toml::Float(number) => (*number.value()).into(),
        Toml::Boolean(flag) => (*flag.value()).into(),
        Toml::Datetime(time) => time.value().to_string().into(),
        Toml::Array(items) => items.iter().map(plain).collect(),
        Toml::InlineTable(table) => table.iter().map(|(key, value)| (key.to_owned(), plain(value))).collect(),
    }
}
