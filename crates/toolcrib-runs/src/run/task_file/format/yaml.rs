//! YAML: a list of tasks, or an object with one list of tasks. The parser bounds depth, nodes and the copies that aliases make.

use indexmap::IndexMap;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::{super::dialect::write_as_text, FormatError, Record};

pub(super) fn read(text: &str) -> Result<Vec<Record>, FormatError> {
    let begins =
        |line: &&str| !(line.trim().is_empty() || line.starts_with(['#', '%']) || line.starts_with("---"));
    let is_list = text.lines().find(begins).is_none_or(|line| line.trim_start().starts_with(['-', '[']));
    let items: Vec<Spanned<Value>> = if is_list {
        serde_saphyr::from_str(text).map_err(|error| wrong(&error))?
    } else {
        let fields: IndexMap<String, Vec<Spanned<Value>>> =
            serde_saphyr::from_str(text).map_err(|error| wrong(&error))?;
        if fields.len() != 1 {
            let reason = "expected a list of tasks, or an object with one list of tasks".to_owned();
            return Err(FormatError { line: 1, reason });
        }
        fields.into_values().flatten().collect()
    };
    let record = |mut item: Spanned<Value>| {
        // Nobody puts quotes around a number.
        for key in ["id", "target"] {
            if let Some(value) = item.value.get_mut(key) {
                write_as_text(value);
            }
        }
        let line = usize::try_from(item.referenced.line()).unwrap_or(usize::MAX);
        Record { line, number: None, id: None, value: Ok(item.value) }
    };
    Ok(items.into_iter().map(record).collect())
}

fn wrong(error: &serde_saphyr::Error) -> FormatError {
    let line = error.location().map_or(1, |location| location.line());
    let words = error.without_snippet().to_string();
    let reason = words.lines().next().unwrap_or_default();
    FormatError { line: usize::try_from(line).unwrap_or(usize::MAX), reason: format!("not YAML: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_their_lines() {
        let records = read("# mine\n- input: |\n    a\n    b\n- id: 7\n  target: [1, x]\n").unwrap();
        assert_eq!(records[0].value.as_ref().unwrap()["input"], "a\nb\n");
        assert_eq!((records[0].line, records[1].line), (2, 5));
        assert_eq!(*records[1].value.as_ref().unwrap(), serde_json::json!({"id": "7", "target": ["1", "x"]}));
        assert_eq!(read("tasks:\n  - input: a\n").unwrap()[0].line, 2);
        let error = read("- input: a\n- input: [\n").unwrap_err();
        assert!(error.line >= 2 && error.reason.starts_with("not YAML: "), "{error:?}");
        assert!(read("input: a\nid: b\n").is_err());
    }

    #[test]
    fn aliases_that_multiply_are_refused() {
        let mut text = String::from("- &a0 [x, x, x, x, x, x, x, x, x]\n");
        for n in 1..9 {
            let before = vec![format!("*a{}", n - 1); 9].join(", ");
            text += &format!("- &a{n} [{before}]\n");
        }
        assert!(read(&text).is_err());
    }
}
