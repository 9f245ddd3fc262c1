//! Entries in the text of a TOML file. All other text stays as it is.

use serde_json::Value;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike};

use super::TextProblem;

/// The text of a file with this entry alone.
pub(super) fn alone(table: &str, name: &str, entry: &Value) -> String {
    let mut document = DocumentMut::new();
    document.insert(table, Item::Table(servers_table()));
    if let Some(servers) = document[table].as_table_like_mut() {
        servers.insert(name, Item::Table(entry_table(entry)));
    }
    document.to_string()
}

pub(super) fn find(text: &str, table: &str, name: &str) -> Result<Option<Value>, TextProblem> {
    let mut document = parse(text)?;
    let entry = servers(&mut document, table)?.and_then(|servers| servers.get(name).map(value));
    Ok(entry)
}

pub(super) fn with(text: &str, table: &str, name: &str, entry: &Value) -> Result<String, TextProblem> {
    let mut document = parse(text)?;
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
    Ok(document.to_string())
}

pub(super) fn without(text: &str, table: &str, name: &str) -> Result<String, TextProblem> {
    let mut document = parse(text)?;
    if let Some(servers) = servers(&mut document, table)? {
        servers.remove(name);
    }
    Ok(document.to_string())
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
