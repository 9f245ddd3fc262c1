//! Scores an answer against its target, and refuses unusable targets at load time.

mod contains;
mod pass_rate;

use std::sync::LazyLock;

use regex::Regex;

pub use self::pass_rate::PassRate;
use crate::task::{Outcome, Score, Target, Task};

/// 1 when `answer` fits one of the targets, 0 when it fits none, `None` when there is nothing to compare with.
///
/// Without a `score` the target must occur in the answer, as whole words and whole numbers, case aside.
pub(crate) fn judge(answer: &str, target: Option<&Target>, score: Option<&Score>) -> Option<f64> {
    let targets = target?.all();
    let right = targets.iter().any(|target| fits(answer, target, score.unwrap_or(&Score::Contains)));
    Some(if right { 1.0 } else { 0.0 })
}

/// How a task ends that has an answer with this score.
pub(crate) fn outcome(score: Option<f64>) -> Outcome {
    match score {
        None => Outcome::Unscored,
        Some(score) if score >= 1.0 => Outcome::Passed,
        Some(_) => Outcome::Failed,
    }
}

/// Whether the target of `task` can be judged at all. The error says what is wrong.
pub(crate) fn check(task: &Task) -> Result<(), String> {
    let Some(target) = &task.target else {
        return match task.score {
            Some(_) => Err("`score` needs a `target` to compare with".into()),
            None => Ok(()),
        };
    };
    if target.all().is_empty() {
        return Err("`target` is an empty list: no answer could be right".into());
    }
    for target in target.all() {
        match task.score.as_ref().unwrap_or(&Score::Contains) {
            Score::Contains if target.trim().is_empty() => {
                return Err("`target` is empty: no word or number can be found in the answer".into());
            }
            Score::Regex => {
                Regex::new(target)
                    .map_err(|error| format!("`target` is not a regular expression: {error}"))?;
            }
            Score::Numeric { tol } => {
                if !tol.is_finite() || *tol < 0.0 {
                    return Err(format!("`score.tol` must be 0 or more, found {tol}"));
                }
                if number(target).is_none() {
                    return Err(format!("`target` must be a number for a numeric score, found `{target}`"));
                }
            }
            Score::Exact | Score::Contains | Score::Boxed => {}
        }
    }
    Ok(())
}

fn fits(answer: &str, target: &str, score: &Score) -> bool {
    match score {
        Score::Exact => answer.trim() == target.trim(),
        Score::Contains => contains::contains(answer, target),
        Score::Regex => Regex::new(target).is_ok_and(|pattern| pattern.is_match(answer)),
        Score::Numeric { tol } => match (last_number(answer), number(target)) {
            (Some(found), Some(wanted)) => near(found, wanted, *tol),
            _ => false,
        },
        Score::Boxed => last_boxed(answer).is_some_and(|inner| inner.trim() == target.trim()),
    }
}

fn near(found: f64, wanted: f64, tol: f64) -> bool {
    // A tolerance is given in decimal: what is 0.1 apart on paper may be a bit more apart in binary.
    let slack = if tol > 0.0 { 4.0 * f64::EPSILON * found.abs().max(wanted.abs()) } else { 0.0 };
    (found - wanted).abs() <= tol + slack
}

/// A text that is one number and nothing else.
fn number(text: &str) -> Option<f64> {
    text.trim()
        .replace(',', "")
        .replace('\u{2212}', "-")
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite())
}

fn last_number(text: &str) -> Option<f64> {
    static NUMBER: LazyLock<Option<Regex>> = LazyLock::new(|| {
        Regex::new(
            r"[-+\x{2212}]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?",
        )
        .ok()
    });
    let found = NUMBER.as_ref()?.find_iter(text).last()?;
    // In `10-5` and `page-3` the line is a hyphen.
    let hyphen = text[..found.start()].chars().next_back().is_some_and(char::is_alphanumeric);
    let digits = found.as_str();
    number(if hyphen { digits.trim_start_matches(['-', '+', '\u{2212}']) } else { digits })
}

/// Whether a text has a box with its end.
pub(crate) fn has_box(text: &str) -> bool {
    last_boxed(text).is_some()
}

fn last_boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let inner = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1_usize;
    let mut escaped = false;
    for (at, c) in inner.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' if depth == 1 => return Some(&inner[..at]),
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right(answer: &str, target: &str, score: &Score) -> bool {
        judge(answer, Some(&Target::One(target.into())), Some(score)) == Some(1.0)
    }

    #[test]
    fn contains_is_the_default_and_any_target_matches() {
        let target = Target::AnyOf(vec!["Paris".into(), "Rome".into()]);
        assert_eq!(judge("It is ROME.", Some(&target), None), Some(1.0));
        assert_eq!(judge("Berlin", Some(&target), None), Some(0.0));
        assert_eq!(judge("Berlin", None, None), None);
        let four = Target::One("4".into());
        assert_eq!(judge("It is 14.", Some(&four), None), Some(0.0));
        assert_eq!(judge("It is 4 km.", Some(&four), None), Some(1.0));
    }

    #[test]
    fn exact_texts_and_patterns_are_scored() {
        assert!(right(" 42\n", "42", &Score::Exact));
        assert!(!right("42.", "42", &Score::Exact));
        assert!(right("took 17 ms", r"\b\d+ ms$", &Score::Regex));
        assert!(!right("took 17 s", r"\b\d+ ms$", &Score::Regex));
    }

    #[test]
    fn the_last_number_counts() {
        let exact = Score::Numeric { tol: 0.0 };
        for (answer, target) in [
            ("6 * 7 = 42.", "42"),
            ("about $1,234.50", "1234.5"),
            ("minus \u{2212}3", "-3"),
            ("pages 10-5", "5"),
            ("x = -2.5e3", "-2500"),
            ("one of 1, 2, 3", "3"),
        ] {
            assert!(right(answer, target, &exact), "{answer}");
        }
        assert!(!right("none", "0", &exact));
        assert!(right("10.3", "10.2", &Score::Numeric { tol: 0.1 }));
        assert!(!right("10.31", "10.2", &Score::Numeric { tol: 0.1 }));
    }

    #[test]
    fn the_last_box_is_read_with_nested_braces() {
        assert!(right(r"\boxed{1} so \boxed{\frac{1}{2}} done", r"\frac{1}{2}", &Score::Boxed));
        assert!(right(r"\boxed{\{1\}}", r"\{1\}", &Score::Boxed));
        assert!(!right(r"\boxed{1", "1", &Score::Boxed));
    }

    #[test]
    fn unusable_scorers_are_refused() {
        let task = |target: &str, score: Score| Task {
            target: Some(Target::One(target.into())),
            score: Some(score),
            ..Task::default()
        };
        assert!(check(&task("(", Score::Regex)).unwrap_err().contains("regular expression"));
        assert!(check(&task("ten", Score::Numeric { tol: 0.0 })).unwrap_err().contains("`ten`"));
        assert!(check(&task("", Score::Contains)).is_err());
        assert!(check(&Task { score: Some(Score::Exact), ..Task::default() }).is_err());
        assert_eq!(check(&task("1,000", Score::Numeric { tol: 0.5 })), Ok(()));
        assert_eq!(check(&Task::default()), Ok(()));
    }
}
