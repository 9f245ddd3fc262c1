//! CSV and TSV, as Excel and others write them: the first line names the columns. The separator is that of a line `sep=;`,
//! else that by which the first line has known columns, or several ones.

use serde_json::{Map, Value};

use super::{super::synonyms, FormatError, Record};

/// The most columns of a table.
const MOST_COLUMNS: usize = 10_000;
/// Rows that do not fit and are checked for a quote as the cause: each check looks at the rest of the file.
const LOOKED_INTO: usize = 20;

/// Bytes that can separate cells.
const SEPARATORS: [u8; 4] = [b',', b';', b'\t', b'|'];

pub(super) fn read(text: &str, usual: u8) -> Result<Vec<Record>, FormatError> {
    let (said, text) = said_separator(text);
    let first_line = if said.is_some() { 2 } else { 1 };
    let separator = said.unwrap_or_else(|| found_separator(text, usual));
    let mut reader =
        csv::ReaderBuilder::new().delimiter(separator).flexible(true).from_reader(text.as_bytes());
    let columns = reader.headers().map_err(|error| wrong(&error, first_line))?.clone();
    if columns.len() > MOST_COLUMNS {
        let reason =
            format!("the first line names {} columns: a table may have {MOST_COLUMNS}", columns.len());
        return Err(FormatError { line: first_line, reason });
    }
    let mut names: Vec<&str> = columns.iter().map(str::trim).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    if let Some((twice, _)) = names.iter().zip(names.iter().skip(1)).find(|(name, next)| name == next) {
        return Err(FormatError { line: first_line, reason: format!("two columns are called `{twice}`") });
    }
    let mut lines = Lines { text: text.as_bytes(), counted: 0, breaks: first_line - 1 };
    let (mut records, mut wrong_rows) = (Vec::new(), 0);
    for (number, row) in (1..).zip(reader.records()) {
        let row = row.map_err(|error| wrong(&error, first_line))?;
        let start =
            row.position().map_or(0, |position| usize::try_from(position.byte()).unwrap_or(usize::MAX));
        let line = lines.of(start);
        // Programs write rows without a value for what was once used.
        if row.iter().all(|cell| cell.trim().is_empty()) {
            continue;
        }
        let rest = text.get(start..).filter(|_| wrong_rows < LOOKED_INTO).unwrap_or_default();
        let value = match ragged(&row, columns.len(), rest) {
            Some(reason) => {
                wrong_rows += 1;
                Err(reason)
            }
            None => {
                let cells = columns.iter().zip(&row).filter(|(name, _)| !name.trim().is_empty());
                let cells = cells.map(|(name, cell)| (name.trim().to_owned(), cell.into()));
                Ok(cells.collect::<Map<String, Value>>().into())
            }
        };
        records.push(Record { line, number: Some(number), id: None, value });
    }
    Ok(records)
}

/// The separator that a first line `sep=;` says, which Excel reads and writes, and the text behind that line.
fn said_separator(text: &str) -> (Option<u8>, &str) {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let first = first.trim_end_matches('\r').trim_matches('"');
    match first.get(..4).filter(|key| key.eq_ignore_ascii_case("sep=")).map(|_| &first.as_bytes()[4..]) {
        Some([separator]) => (Some(*separator), rest),
        _ => (None, text),
    }
}

/// The separator by which the first line has the most columns that are known, or the most columns; `usual` in doubt.
fn found_separator(text: &str, usual: u8) -> u8 {
    let columns = |separator: u8| {
        let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(text.as_bytes());
        let names = reader.headers().cloned().unwrap_or_default();
        (names.iter().filter(|name| synonyms::is_known(name)).count(), names.len(), separator == usual)
    };
    SEPARATORS.into_iter().max_by_key(|separator| columns(*separator)).unwrap_or(usual)
}

/// Why a row does not fit the columns. `text` begins with it.
fn ragged(row: &csv::StringRecord, columns: usize, text: &str) -> Option<String> {
    let more_are_empty = || row.iter().skip(columns).all(|cell| cell.trim().is_empty());
    if row.len() == columns || (row.len() > columns && more_are_empty()) {
        return None;
    }
    let is_open = row.iter().any(|cell| cell.contains('\n'))
        && memchr::memchr_iter(b'"', text.as_bytes()).count() % 2 == 1;
    let open = if is_open { "; a quote (`\"`) that opens in this record is not closed" } else { "" };
    Some(format!("the record has {} fields, and the first line names {columns} columns{open}", row.len()))
}

/// Counts lines. The parser's own number is one too small where lines end with CR and LF.
struct Lines<'a> {
    text: &'a [u8],
    /// So many bytes have so many line breaks.
    counted: usize,
    breaks: usize,
}

impl Lines<'_> {
    /// The line, from 1, of a record that begins at this byte; records come in their order.
    fn of(&mut self, start: usize) -> usize {
        let start = start.min(self.text.len());
        // Line breaks before the record may belong to it.
        let blank = self.text[start..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let end = start + blank;
        let passed = self.text.get(self.counted..end).unwrap_or_default();
        self.breaks += passed.split(|byte| *byte == b'\n').skip(1).count();
        self.counted = self.counted.max(end);
        self.breaks + 1
    }
}

fn wrong(error: &csv::Error, first_line: usize) -> FormatError {
    let line = error.position().map_or(1, csv::Position::line);
    let line = usize::try_from(line).unwrap_or(usize::MAX).saturating_add(first_line - 1);
    FormatError { line, reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_have_lines_and_quotes() {
        let records = read("id, input\n1,\"a\nb \"\"c\"\"\"\n2,d\n", b',').unwrap();
        assert_eq!(records[0].value.as_ref().unwrap()["input"], "a\nb \"c\"");
        assert_eq!((records[1].line, records[1].number), (4, Some(2)));
        let records = read("id,input\r\n1,a\r\n\r\n2,b\r\n", b',').unwrap();
        assert_eq!(records.iter().map(|record| record.line).collect::<Vec<_>>(), [2, 4]);
        let error = read("id\tid\n1\t2\n", b'\t').unwrap_err();
        assert_eq!(error.reason, "two columns are called `id`");
    }

    #[test]
    fn a_table_has_so_many_columns_at_most() {
        let table = |columns: usize| {
            let names: Vec<String> = (0..columns).map(|n| format!("column_{n}")).collect();
            format!("{}\n{}\n", names.join(","), vec!["x"; columns].join(","))
        };
        assert_eq!(read(&table(MOST_COLUMNS), b',').unwrap().len(), 1);
        let error = read(&table(MOST_COLUMNS + 1), b',').unwrap_err();
        assert_eq!(error.reason, "the first line names 10001 columns: a table may have 10000");
    }

    #[test]
    fn tables_are_read_as_programs_write_them() {
        for text in [
            "input;target\r\n\"one; two\";4\r\n",
            "sep=;\r\ninput;target\r\n\"one; two\";4\r\n",
            "\"sep=|\"\ninput|target\none; two|4\n",
            "input\ttarget\none; two\t4\n",
            "input,target\none; two,4\n",
            "input,target,,\none; two,4,,\n,,,\n , \n",
            "input,target\none; two,4,,\n",
        ] {
            let records = read(text, b',').unwrap();
            let values: Vec<_> = records.iter().map(|record| record.value.as_ref().unwrap()).collect();
            assert_eq!(values, [&serde_json::json!({"input": "one; two", "target": "4"})], "{text}");
        }
        // Names that are known decide.
        let records = read("id;input, whole;target\n1;a, b;4\n", b',').unwrap();
        assert_eq!(records[0].value.as_ref().unwrap()["target"], "4");
    }

    #[test]
    fn every_row_that_does_not_fit_is_named() {
        let records = read("sep=,\nid,input,target\n1,a,4,extra\n2,b\n3,c,5\n4,\"d\n5,e,6\n", b',').unwrap();
        let wrong =
            |record: &Record| record.value.as_ref().err().map(|reason| format!("{}: {reason}", record.line));
        let wrong: Vec<_> = records.iter().filter_map(wrong).collect();
        let names = "and the first line names 3 columns";
        assert_eq!(
            wrong,
            [
                format!("3: the record has 4 fields, {names}"),
                format!("4: the record has 2 fields, {names}"),
                format!(
                    "6: the record has 2 fields, {names}; a quote (`\"`) that opens in this record is not closed"
                ),
            ]
        );
    }
}
