//! Tables in plain text: each column is as wide as its longest cell, unless the terminal is too narrow.

use toolcrib::cli_support::cut;

use super::output;

/// The value of [`Fit::least`] in most tables.
pub(crate) const LEAST: usize = 12;
/// Spaces between two columns.
const GAP: usize = 2;

/// How a table is made narrower.
pub(crate) struct Fit<'a> {
    /// Columns of the terminal. `None`: any table fits.
    pub(crate) width: Option<usize>,
    /// The columns to leave out, one after the other.
    pub(crate) drop: &'a [usize],
    /// The columns whose cells may be cut, the first one last.
    pub(crate) cut: &'a [usize],
    /// The least width of these.
    pub(crate) least: usize,
}

/// The rows as lines, the columns in `right` (by number) aligned to the right.
pub(crate) fn lines<const N: usize>(rows: &[[String; N]], right: &[usize]) -> Vec<String> {
    fitted(rows, right, &Fit { width: None, drop: &[], cut: &[], least: LEAST })
}

/// The same in a terminal that may be too narrow for all of it.
pub(crate) fn fitted<const N: usize>(rows: &[[String; N]], right: &[usize], fit: &Fit<'_>) -> Vec<String> {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| std::array::from_fn(|column| output::one_line(&row[column]))).collect();
    let mut widths: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    });
    let mut kept: Vec<usize> = (0..N).collect();
    if let Some(width) = fit.width {
        narrow(&mut widths, &mut kept, width, fit);
    }
    let line = |row: &[String; N]| {
        let cells = kept.iter().map(|column| {
            let (cell, width) = (cut(&row[*column], widths[*column]), widths[*column]);
            if right.contains(column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Leaves out columns and makes others narrower until `width` is enough, as far as `fit` allows.
fn narrow(widths: &mut [usize], kept: &mut Vec<usize>, width: usize, fit: &Fit<'_>) {
    let sum = |kept: &[usize], of: &dyn Fn(usize) -> usize| {
        kept.iter().map(|column| of(*column) + GAP).sum::<usize>().saturating_sub(GAP)
    };
    let least = |column: usize| {
        if fit.cut.contains(&column) { widths[column].min(fit.least) } else { widths[column] }
    };
    for column in fit.drop {
        if sum(kept, &least) <= width {
            break;
        }
        kept.retain(|other| other != column);
    }
    for column in fit.cut.iter().rev().filter(|column| kept.contains(column)) {
        let over = sum(kept, &|column| widths[column]).saturating_sub(width);
        widths[*column] -= over.min(widths[*column].saturating_sub(fit.least));
    }
}

/// `text` with line breaks in place of the spaces at which lines become too long. A word is never broken.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for mut line in text.split('\n') {
        while let Some((end, _)) = line.char_indices().nth(width) {
            // Behind the indentation.
            let start = line.len() - line.trim_start().len();
            let fits = match end > start && line[end..].starts_with(' ') {
                true => Some(end),
                false => line.get(start..end).and_then(|part| part.rfind(' ')).map(|at| start + at),
            };
            let Some(space) = fits.or_else(|| line[start..].find(' ').map(|at| start + at)) else { break };
            lines.push(line[..space].trim_end());
            line = line[space..].trim_start();
        }
        lines.push(line);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        assert_eq!(wrapped("one two three", 9), "one two\nthree");
        assert_eq!(wrapped("one two three", 7), "one two\nthree");
        assert_eq!(wrapped("  a-long-word and\nmore", 5), "  a-long-word\nand\nmore");
        assert_eq!(
            wrapped("\u{e9}\u{e9}\u{e9} \u{e9}\u{e9}\u{e9}\u{e9} b", 4),
            "\u{e9}\u{e9}\u{e9}\n\u{e9}\u{e9}\u{e9}\u{e9}\nb"
        );
        for text in ["", "short", "unbreakable-and-long", "a\n\nb"] {
            assert_eq!(wrapped(text, 5), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_longest_cell() {
        let rows = [["RUN", "TASKS", "MODEL"], ["0f3a", "7", "m\u{1b}"]].map(|row| row.map(str::to_owned));
        assert_eq!(lines(&rows, &[1]), ["RUN   TASKS  MODEL", "0f3a      7  m\\u{1b}"]);
    }

    #[test]
    fn a_narrow_terminal_leaves_out_columns_and_cuts_cells() {
        let rows = [["RUN", "TASKS", "TOOK", "MODEL"], ["0f3a", "7", "1.20s", "a-model-with-a-long-name"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        let at =
            |width| fitted(&rows, &[1], &Fit { width: Some(width), drop: &[2, 1], cut: &[3], least: LEAST });
        assert_eq!(at(80)[1], "0f3a      7  1.20s  a-model-with-a-long-name");
        assert_eq!(at(40)[1], "0f3a      7  1.20s  a-model-with-a-lo...");
        assert_eq!(at(30), ["RUN   TASKS  MODEL", "0f3a      7  a-model-with-a..."]);
        assert_eq!(at(20)[1], "0f3a  a-model-wit...");
        for width in 18..80 {
            assert!(at(width).iter().all(|line| line.chars().count() <= width), "{width}");
        }
    }
}
