//! Refuses expressions whose evaluation by fend would never end or would fill the memory.
//!
//! fend can be interrupted while it calculates, but not while it parses, shifts, joins texts, or counts days from a
//! date. It multiplies units by listing them one after the other, so that `a=a*a` doubles the list.

/// Longest expression, in bytes: its recursion has to fit the stack, and a sum is read in quadratic time.
const LONGEST: usize = 4096;
/// Steps that the parser may need, by [`steps`]. So many take half a second or so.
const MOST_STEPS: u64 = 2_000_000;
/// Units that all values of an expression with variables may have, by [`uses`].
const MOST_UNITS: usize = 10_000;
/// Names that evaluate to a text: repeated joining doubles it each time.
const TEXTS: [&str; 8] =
    ["string", "words", "roman", "roman_numeral", "char", "character", "version", "trans"];

/// # Errors
/// What about the expression is refused, and what to write instead.
pub(super) fn check(expression: &str) -> Result<(), String> {
    if expression.len() > LONGEST {
        return Err(format!("the expression has {} bytes, the limit is {LONGEST}", expression.len()));
    }
    let letters: Vec<char> = expression.chars().collect();
    let refused = [
        defines_functions(&letters).then_some("functions cannot be defined: write the expression out"),
        rolls_dice(&letters).then_some("dice are not supported"),
        shifts_far(expression)
            .then_some("`<<` needs a number of at most 4 digits to its right: write `* 2^n`"),
        (assigns(&letters) && has_text(expression))
            .then_some("an expression with variables cannot contain texts"),
        has_date(expression).then_some("dates are not supported: the server `time` has them"),
        assigns(&letters).then(|| uses(expression).err()).flatten(),
        (steps(&letters) > MOST_STEPS)
            .then_some("the expression is nested too deep, or too long: evaluate parts of it first"),
    ];
    match refused.into_iter().flatten().next() {
        Some(why) => Err(why.to_owned()),
        None => Ok(()),
    }
}

/// `x: x + 1`, `x => x + 1` or `\x.x + 1`: applied to itself it never ends.
fn defines_functions(letters: &[char]) -> bool {
    letters.iter().any(|c| matches!(c, '\\' | 'λ' | ':')) || letters.windows(2).any(|pair| pair == ['=', '>'])
}

/// `d6`, `3d6`: a distribution has an entry for each outcome. `0x1d6` is a number.
fn rolls_dice(letters: &[char]) -> bool {
    let in_word = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let die = |at: usize| {
        let before = &letters[..at];
        letters[at] == 'd'
            && letters.get(at + 1).is_some_and(char::is_ascii_digit)
            && !before.last().is_some_and(|c| c.is_ascii_alphabetic() || *c == '_')
            && !letters[before.iter().rposition(|c| !in_word(c)).map_or(0, |space| space + 1)..]
                .starts_with(&['0', 'x'])
    };
    (0..letters.len()).any(die)
}

/// fend moves by one word after another and does not look at the clock.
fn shifts_far(expression: &str) -> bool {
    expression.split("<<").skip(1).any(|right| {
        let right = right.trim_start();
        let rest = right.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = right.len() - rest.len();
        let ends = rest.trim_start().chars().next().is_none_or(|c| ")|&<>;=".contains(c));
        !(1..=4).contains(&digits) || !ends
    })
}

fn assigns(letters: &[char]) -> bool {
    (0..letters.len()).any(|at| {
        let compares = matches!(letters.get(at + 1), Some('='))
            || at.checked_sub(1).is_some_and(|before| matches!(letters[before], '=' | '!'));
        letters[at] == '=' && !compares
    })
}

fn has_text(expression: &str) -> bool {
    let mut words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    expression.contains(['"', '\''])
        || words.any(|word| TEXTS.iter().any(|text| word.eq_ignore_ascii_case(text)))
}

/// `@2020-01-01`, or a text `to date`: fend adds days one by one and does not look at the clock.
fn has_date(expression: &str) -> bool {
    let mut words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    expression.contains('@') || words.any(|word| word.eq_ignore_ascii_case("date"))
}

/// Bounds the units of all values: of each the letters, and for each use of a variable as many as that has. A name
/// counts wherever its letters are, so that it does not matter where fend sees words.
fn uses(expression: &str) -> Result<(), &'static str> {
    let (mut variables, mut all_units) = (Vec::<(&str, usize)>::new(), 0_usize);
    for statement in statements(expression) {
        let parts = statement.split_once('=').filter(|(_, value)| !value.starts_with('='));
        let (name, value) = match parts {
            Some((name, value)) if !name.ends_with('!') => (Some(name.trim()), value),
            _ => (None, statement),
        };
        let word = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        // fend knows comments, too.
        if name.is_some_and(|name| name.is_empty() || !word(name)) || statement.contains('#') {
            return Err(
                "a variable is assigned as `name = value;`, and its name has letters, digits and `_` only",
            );
        }
        let all: Vec<char> = value.chars().collect();
        if assigns(&all) {
            return Err("a variable can be assigned only at the start of a statement");
        }
        let letters = all.iter().filter(|c| !c.is_ascii_digit() && !" +-*/^().".contains(**c)).count();
        let units = variables.iter().fold(1 + letters, |sum, (name, units)| {
            sum.saturating_add(value.matches(name).count().saturating_mul(*units))
        });
        all_units = all_units.saturating_add(units);
        if all_units > MOST_UNITS {
            return Err("variables are used in each other too often: evaluate parts of it first");
        }
        if let Some(name) = name {
            variables.retain(|(known, _)| *known != name);
            variables.push((name, units));
        }
    }
    Ok(())
}

/// Splits an expression at the semicolons that are in no parenthesis.
pub(super) fn statements(expression: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    expression.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ';' && depth == 0
    })
}

/// A bound of what the parser does. It reads what follows each term of a sum once more, as something that might be
/// added to it without a sign; it copies what it has of a term at each further factor; and it tries several meanings of
/// what follows a number or a name: a parenthesis there is read once for each of them, and nested ones multiply.
fn steps(letters: &[char]) -> u64 {
    // How often the parenthesis is read, how often the term in it, and where that begins.
    let (mut readings, mut term, mut begin) = (1_u64, 1_u64, 0);
    let (mut steps, mut last, mut outer) = (0_u64, None, Vec::new());
    for (at, c) in letters.iter().enumerate() {
        let here = readings.saturating_mul(term);
        steps = steps.saturating_add(here.saturating_mul(1 + (at - begin) as u64 / 2));
        match c {
            '(' => {
                outer.push((readings, term, begin));
                (readings, term, begin) = (here.saturating_mul(meanings(&letters[..at])), 1, at);
            }
            ')' => (readings, term, begin) = outer.pop().unwrap_or((1, 1, begin)),
            // Not those that are the sign of what follows.
            '+' | '-' | '\u{2212}' if !matches!(last, None | Some('+' | '-' | '*' | '/' | '^' | '(')) => {
                (term, begin) = (term + 1, at);
            }
            ';' => (term, begin) = (1, at),
            _ => {}
        }
        last = Some(*c).filter(|c| !c.is_whitespace()).or(last);
    }
    steps
}

/// How often the parser may read a parenthesis that follows `before`.
fn meanings(before: &[char]) -> u64 {
    let mut before = before.iter().rev().skip_while(|c| c.is_whitespace());
    match before.next() {
        None | Some('(' | ';' | '=' | '&' | '|' | '<' | '>') => 1,
        Some('+' | '-' | '*') => {
            let operand = before.find(|c| !c.is_whitespace());
            if operand.is_none_or(|c| c.is_alphanumeric() || *c == ')') { 1 } else { 4 }
        }
        Some(last) if last.is_ascii_alphabetic() => {
            let word = before.take_while(|c| c.is_ascii_alphabetic());
            let word: String = std::iter::once(last).chain(word).collect();
            // Backwards: `of` and `per` take what follows as numbers do.
            if word == "fo" || word == "rep" { 4 } else { 2 }
        }
        Some(_) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_expressions_are_accepted() {
        for expression in [
            "1/3 + 1/6",
            "5 feet 3 inches to cm",
            "5'3\" to cm",
            "x = 5; y = 3; x*y == 15",
            "1 << 10",
            "(1 << 10) | (1<<3)",
            "1234 to words",
            "0x1d6 + 0xd6",
            "16 days + 3d",
            "12 choose 5",
            "sqrt(abs(sin(cos(tan(log10(ln(2.5)))))))",
            "((((((((((((1+2)*3)+4)*5)+6)*7)+8)*9)+10)*11)+12)*13)+14",
            "2(3+4(5+6(7+8)))",
            "1+(2+(3+(4+(5+(6+(7+(8+(9+10))))))))",
            &"100*(1.05^3) + ".repeat(200),
            &format!("{}1", "1+".repeat(1_000)),
            "1000 * (1 + 0.05/12)^(12*10) - 250 * (((1 + 0.05/12)^(12*10) - 1) / (0.05/12))",
            "78% of 1200",
            "principal = 1000; rate = 5%; n = 12; t = 10; principal * (1 + rate/n)^(n*t)",
            "x = 1; x = x/2 + 1/x; x = x/2 + 1/x; x = x/2 + 1/x; x = x/2 + 1/x; x = x/2 + 1/x; x",
            "m = 5 kg; v = 3 m/s; e_k = m*v^2/2; e_k to J",
            "a = 3; a == 3",
            "a = 3; 4 != a",
        ] {
            assert_eq!(check(expression), Ok(()), "{expression}");
        }
    }

    #[test]
    fn endless_or_huge_expressions_are_refused() {
        let nested = |open: &str, depth: usize| format!("{}1{}", open.repeat(depth), ")".repeat(depth));
        for (expression, why) in [
            ("1".repeat(5000), "the expression has 5000 bytes"),
            (r"(\x. x x)(\x. x x)".to_owned(), "functions"),
            ("f = x: x x; f f".to_owned(), "functions"),
            ("(x => x x)".to_owned(), "functions"),
            ("1 << 99999999".to_owned(), "`<<`"),
            ("1<<(2^26)".to_owned(), "`<<`"),
            ("1 << 10^9".to_owned(), "`<<`"),
            ("1<<9!".to_owned(), "`<<`"),
            ("1 << 5e9".to_owned(), "`<<`"),
            ("d1000000".to_owned(), "dice"),
            ("3d6".to_owned(), "dice"),
            ("2*d1000*d1000".to_owned(), "dice"),
            ("1e3d6".to_owned(), "dice"),
            (format!("a=\"x\";{}", "a=a+a;".repeat(40)), "texts"),
            (format!("a=9 to words;{}", "a=a+a;".repeat(40)), "texts"),
            ("@2020-01-01 + 10^18 days".to_owned(), "dates"),
            ("'2020-01-01' to date + 10^18 days".to_owned(), "dates"),
            ("\"2020-01-01\" as Date".to_owned(), "dates"),
            (format!("a=kg m s A;{}a", "a=a*a;".repeat(60)), "too often"),
            (format!("a=kg m s A;{}a", "b=a*a;a=b;".repeat(60)), "too often"),
            (format!("a=kg m s A;{}a", "a=2a/a^-1;".repeat(60)), "too often"),
            (format!("a={}1;b={}1;b", "kg ".repeat(500), "a*".repeat(500)), "too often"),
            (format!("a={}1;{}", "kg ".repeat(300), "b=a;".repeat(500)), "too often"),
            (format!("a=kg;{}", "(b=a*a)*b*(a=b*b);".repeat(20)), "a variable"),
            (format!("a=kg;{}", "a=(1;a*a)*a;".repeat(20)), "too often"),
            (format!("a=kg;{}", "a=b=a*a*b;".repeat(20)), "a variable"),
            (format!("a=kg;{}", "(1;a=a*a)*a;".repeat(20)), "a variable"),
            (format!("a=kg;{}", "a=#)\na*a;".repeat(20)), "a variable"),
            (nested("1(", 30), "nested too deep"),
            (nested("1+(", 30), "nested too deep"),
            (nested("1-2-3*(", 15), "nested too deep"),
            (format!("{}{}1", "1+".repeat(1_000), "a*".repeat(1_000)), "nested too deep"),
            (nested("1 2/(", 12), "nested too deep"),
            (nested("1 2^(", 12), "nested too deep"),
            (nested("1 2^-(", 12), "nested too deep"),
            (nested("1 2 per (", 12), "nested too deep"),
            (nested("sin(", 40), "nested too deep"),
        ] {
            let told = check(&expression).unwrap_err();
            assert!(told.contains(why), "{expression}: {told}");
        }
    }
}
