//! CSV and TSV: the first line names the columns.

use serde_json::{Map, Value};

use super::{FormatError, Record};

pub(super) fn read(text: &str, separator: u8) -> Result<Vec<Record>, FormatError> {
    let mut reader = csv::ReaderBuilder::new().delimiter(separator).from_reader(text.as_bytes());
    let columns = reader.headers().map_err(|error| wrong(&error))?.clone();
    let mut names: Vec<&str> = columns.iter().map(str::trim).collect();
    names.sort_unstable();
    if let Some((twice, _)) = names.iter().zip(names.iter().skip(1)).find(|(name, next)| name == next) {
        return Err(FormatError { line: 1, reason: format!("two columns are called `{twice}`") });
    }
    let mut lines = Lines { text: text.as_bytes(), counted: 0, breaks: 0 };
    let record = |(number, row): (usize, csv::Result<csv::StringRecord>)| {
        let row = row.map_err(|error| wrong(&error))?;
        let cells = columns.iter().zip(&row).filter(|(name, _)| !name.trim().is_empty());
        let value: Map<String, Value> =
            cells.map(|(name, cell)| (name.trim().to_owned(), cell.into())).collect();
        let line = row.position().map_or(0, |position| lines.of(position));
        Ok(Record { line, number: Some(number), id: None, value: value.into() })
    };
    (1..).zip(reader.records()).map(record).collect()
}

/// Counts lines. The parser's own number is one too small where lines end with CR and LF.
struct Lines<'a> {
    text: &'a [u8],
    /// So many bytes have so many line breaks.
    counted: usize,
    breaks: usize,
}

impl Lines<'_> {
    /// The line, from 1, of a record; records come in their order.
    fn of(&mut self, position: &csv::Position) -> usize {
        let start = usize::try_from(position.byte()).unwrap_or(usize::MAX).min(self.text.len());
        // Line breaks before the record may belong to it.
        let blank = self.text[start..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let end = start + blank;
        let passed = self.text.get(self.counted..end).unwrap_or_default();
        self.breaks += passed.split(|byte| *byte == b'\n').skip(1).count();
        self.counted = self.counted.max(end);
        self.breaks + 1
    }
}

fn wrong(error: &csv::Error) -> FormatError {
    let line = error.position().map_or(1, csv::Position::line);
    let line = usize::try_from(line).unwrap_or(usize::MAX);
    let reason = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("the record has {len} fields, and the first line names {expected_len} columns")
        }
        _ => error.to_string(),
    };
    FormatError { line, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_have_lines_and_quotes() {
        let records = read("id, input\n1,\"a\nb \"\"c\"\"\"\n2,d\n", b',').unwrap();
        assert_eq!(records[0].value["input"], "a\nb \"c\"");
        assert_eq!((records[1].line, records[1].number), (4, Some(2)));
        let error = read("id,input\n1,a\n2\n", b',').unwrap_err();
        assert_eq!(error.line, 3);
        assert!(error.reason.starts_with("the record has 1 fields"), "{}", error.reason);
        let records = read("id,input\r\n1,a\r\n\r\n2,b\r\n", b',').unwrap();
        assert_eq!(records.iter().map(|record| record.line).collect::<Vec<_>>(), [2, 4]);
        let error = read("id\tid\n1\t2\n", b'\t').unwrap_err();
        assert_eq!(error.reason, "two columns are called `id`");
    }
}
