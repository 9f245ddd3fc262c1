//! Reads journals. One may be somebody else's, so that all of it is bounded.

use std::collections::HashMap;

use rusqlite::Connection;

use crate::store::{
    record::{Entry, Record},
    spending::{Spending, SpentFor},
};

/// The longest record that is read, and the most of one task. The journal may be somebody else's.
const LONGEST: usize = 64 << 20;
const MOST: usize = 200_000;
/// The most bytes of all records of one task.
const MOST_BYTES: usize = 512 << 20;
/// The column of a record, or null if that is longer than [`LONGEST`]: its length is known before it is read.
const ENTRY: &str = "iif(octet_length(entry) <= 67108864, entry, null)";

/// The tasks that have ended, with the status of each.
pub(super) fn ended(connection: &Connection) -> rusqlite::Result<HashMap<String, String>> {
    let mut read = connection.prepare(&format!(
        "select {ENTRY}, task from journal j
           where position = (select max(position) from journal where task = j.task)",
    ))?;
    let rows = read.query_map([], |row| Ok((row.get(1)?, entry_of(row)?)))?;
    let mut ended = HashMap::new();
    for row in rows {
        let (task, line) = row?;
        if let Some(status) = ended_as(&line) {
            ended.insert(task, status);
        }
    }
    Ok(ended)
}

/// Amounts spent by tasks that go on. `goes_on` returns `None` for a task that does not, else whether it had errored.
pub(super) fn spending(
    connection: &Connection,
    goes_on: &dyn Fn(&str) -> Option<bool>,
    spent: SpentFor<'_>,
) -> rusqlite::Result<Spending> {
    let mut begun = connection.prepare("select task from journal where position = 1")?;
    let mut spending = Spending::default();
    for task in begun.query_map([], |row| row.get::<_, String>(0))? {
        let task = task?;
        let Some(retried) = goes_on(&task) else { continue };
        let lines = journal_of(connection, &task)?;
        let entries = lines.iter().filter_map(|line| serde_json::from_str::<Entry>(line).ok());
        spending.add(task, entries, retried, spent);
    }
    Ok(spending)
}

/// The records of a task, in their order.
pub(super) fn journal_of(connection: &Connection, task: &str) -> rusqlite::Result<Vec<String>> {
    let query = format!("select {ENTRY} from journal where task = ? order by position");
    let mut read = connection.prepare_cached(&query)?;
    let (mut lines, mut bytes) = (Vec::new(), 0);
    for line in read.query_map([task], entry_of)? {
        let line = line?;
        bytes += line.len();
        if lines.len() == MOST || bytes > MOST_BYTES {
            let limit = MOST_BYTES >> 20;
            return Err(too_large(format!("`{task}` has more than {MOST} records, or {limit} MiB")));
        }
        lines.push(line);
    }
    Ok(lines)
}

/// The first column of a row, which is [`ENTRY`].
fn entry_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<String> {
    let text: Option<String> = row.get(0)?;
    text.ok_or_else(|| too_large(format!("a record has more than {} MiB", LONGEST >> 20)))
}

fn too_large(what: String) -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(what.into())
}

/// The status of a task whose last record this is, if it has ended.
pub(super) fn ended_as(line: &str) -> Option<String> {
    match serde_json::from_str(line).ok()? {
        Entry { record: Record::Done { status, .. }, .. } => Some(status),
        _ => None,
    }
}
