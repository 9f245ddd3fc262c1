//! Searches answers for regular expressions, so that each search ends in time: pattern and answer may come from elsewhere. A search
//! takes time in proportion to both of their sizes, and one that the library has begun cannot be stopped.

use regex::{Regex, RegexBuilder};
use regex_automata::{Input, hybrid::dfa::DFA, nfa::thompson};

use super::limited::TimeLimit;

/// Answers that are searched at once, whatever the pattern.
const SHORT: usize = 1 << 10;
/// The largest pattern, in bytes of its program, as [`Regex::new`] has it.
const LARGEST: usize = 10 << 20;
/// Bytes of a pattern's program times those of an answer: a few seconds of work.
const MOST_WORK: usize = 1 << 33;
/// Bytes of an answer between two looks at the clock. Each may take as long as the pattern is large.
const STEP: usize = 64;

/// Whether one of the patterns is in the answer. What is no pattern is in none.
///
/// # Errors
/// The time is over, or would be.
pub(super) fn finds_any(patterns: &[String], answer: &str, limit: TimeLimit) -> Result<bool, String> {
    for pattern in patterns {
        limit.check()?;
        if finds(pattern, answer, limit)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn finds(pattern: &str, answer: &str, limit: TimeLimit) -> Result<bool, String> {
    if answer.len() <= SHORT {
        return Ok(Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(answer)));
    }
    if let Some(found) = by_steps(pattern, answer, limit)? {
        return Ok(found);
    }
    // It looks at the ends of words in other letters than ASCII, which the steps cannot.
    let size = (MOST_WORK / answer.len()).min(LARGEST);
    match RegexBuilder::new(pattern).size_limit(size).build() {
        Ok(pattern) => Ok(pattern.is_match(answer)),
        Err(_) if Regex::new(pattern).is_err() => Ok(false),
        Err(_) => Err(format!(
            "the pattern is too large for an answer of {} bytes with other letters than ASCII: leave out `\\b`, or make it shorter",
            answer.len()
        )),
    }
}

/// The same, with a look at the clock now and then. `None`: it cannot be done so.
fn by_steps(pattern: &str, answer: &str, limit: TimeLimit) -> Result<Option<bool>, String> {
    let config = DFA::config().unicode_word_boundary(true).skip_cache_capacity_check(true);
    let program = thompson::Config::new().nfa_size_limit(Some(LARGEST));
    let Ok(dfa) = DFA::builder().thompson(program).configure(config).build(pattern) else { return Ok(None) };
    let mut cache = dfa.create_cache();
    let Ok(mut state) = dfa.start_state_forward(&mut cache, &Input::new(answer)) else { return Ok(None) };
    for bytes in answer.as_bytes().chunks(STEP) {
        limit.check()?;
        for byte in bytes {
            let Ok(next) = dfa.next_state(&mut cache, state, *byte) else { return Ok(None) };
            state = next;
            if state.is_match() || state.is_dead() {
                return Ok(Some(state.is_match()));
            }
            if state.is_quit() {
                return Ok(None);
            }
        }
    }
    let end = dfa.next_eoi_state(&mut cache, state);
    Ok(end.ok().filter(|state| !state.is_quit()).map(|state| state.is_match()))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn found(pattern: &str, answer: &str) -> Result<bool, String> {
        finds_any(&[pattern.to_owned()], answer, TimeLimit::begin())
    }

    #[test]
    fn long_answers_are_searched_as_short_ones() {
        let long = "x".repeat(SHORT);
        for (answer, pattern) in [
            ("took 17 ms", r"\b\d+ ms$"),
            ("took 17 s", r"\b\d+ ms$"),
            ("é took 17 ms", r"\b\d+ ms$"),
            ("é took 17 s", r"\b\d+ ms$"),
            ("Straße", "(?i)STRASSE|STRAßE"),
            ("a\nb", "(?m)^b$"),
            ("a\nb", "^b$"),
            ("", "^$"),
            ("", ""),
            ("y", "("),
            ("ab", r"x\z"),
            ("ab", r"b\z"),
        ] {
            let answer = format!("{long}{answer}");
            let expected = Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(&answer));
            assert_eq!(found(pattern, &answer), Ok(expected), "{pattern}: {answer}");
        }
    }

    #[test]
    fn a_search_that_would_not_end_is_given_up() {
        let random = fastrand::Rng::with_seed(1);
        let mut random = std::iter::repeat_with({
            let mut random = random;
            move || if random.bool() { 'a' } else { 'b' }
        });
        let answer: String = random.by_ref().take(300_000).collect();
        for more in ["", "é"] {
            let begun = Instant::now();
            let pattern = format!(
                "(?:a[ab]{{0,300}}b[ab]{{0,300}}a){{30}}{}[^ab]",
                if more.is_empty() { "" } else { r"\b" }
            );
            let error = found(&pattern, &format!("{more}{answer}")).unwrap_err();
            assert!(begun.elapsed().as_secs() < 20, "{error}");
        }
    }
}
