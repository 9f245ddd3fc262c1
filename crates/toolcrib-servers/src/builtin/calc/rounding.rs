//! Avoids wrong results of fend, which rounds a number and computes its hyperbolic sine and cosine through a
//! floating-point number of 64 bits, and cuts off what is larger than 2^64.
//!
//! Each such call is evaluated alone first. A rounded number must differ from its argument by less than 1.

use super::limits::{self, statements};

/// Their names, and what of their argument `x` and their value `y` must be small.
const FUNCTIONS: [(&str, Small); 7] = [
    ("floor", Small::Difference),
    ("ceil", Small::Difference),
    ("round", Small::Difference),
    ("sinh", Small::Value),
    ("cosh", Small::Value),
    ("asinh", Small::Value),
    ("acosh", Small::Value),
];
/// The number that fend puts in place of any larger one.
const CUT_OFF: &str = "18446744073709551616";

#[derive(Clone, Copy, PartialEq)]
enum Small {
    Difference,
    Value,
}

/// # Errors
/// What would be answered wrongly, or cannot be checked, and what to write instead. `value` evaluates an expression.
pub(super) fn check(expression: &str, value: impl Fn(&str) -> Result<String, String>) -> Result<(), String> {
    let mut before = String::new();
    for statement in statements(expression) {
        for (at, (name, small)) in calls(statement) {
            let argument = argument(&statement[at + name.len()..])
                .ok_or_else(|| format!("write the argument of `{name}` in parentheses: `{name}(x)`"))?;
            let asked = match small {
                Small::Difference => format!("{before}({argument}) - {name}({argument})"),
                Small::Value => format!("{before}{name}({argument})"),
            };
            limits::check(&asked)?;
            let text = value(&asked)?;
            let number = text.trim_start_matches("approx.").trim_start().trim_start_matches('-');
            // `6#0.3`: in base 6.
            let number = number.rsplit('#').next().unwrap_or_default();
            let whole = number.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            let wrong = match small {
                Small::Difference => whole != "0",
                Small::Value => whole == CUT_OFF,
            };
            if wrong {
                return Err(match small {
                    Small::Difference => format!(
                        "`{name}({argument})` cannot be rounded exactly: for whole numbers a and b, the floor of a/b is \
                         `(a - a mod b) / b`"
                    ),
                    Small::Value => {
                        format!("`{name}({argument})` is out of range: write it with powers and logarithms")
                    }
                });
            }
        }
        before.push_str(statement);
        before.push(';');
    }
    Ok(())
}

/// Where one of the names is, as a word of its own. fend knows them in capitals too.
fn calls(statement: &str) -> Vec<(usize, (&'static str, Small))> {
    let lower = statement.to_ascii_lowercase();
    // `2floor(x)` is a product.
    let in_word = |c: char| c.is_alphabetic() || c == '_';
    let mut found = Vec::new();
    for function in FUNCTIONS {
        for (at, name) in lower.match_indices(function.0) {
            let alone = !lower[..at].ends_with(in_word) && !lower[at + name.len()..].starts_with(in_word);
            found.extend(alone.then_some((at, function)));
        }
    }
    found
}

/// The text in the parentheses that `rest` begins with.
fn argument(rest: &str) -> Option<&str> {
    let inner = rest.trim_start().strip_prefix('(')?;
    let mut depth = 1_usize;
    let end = inner.char_indices().find(|(_, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    end.map(|(at, _)| &inner[..at])
}
