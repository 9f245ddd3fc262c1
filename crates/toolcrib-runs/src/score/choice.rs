//! Multiple choice: which of the choices an answer names.

use std::sync::LazyLock;

use regex::Regex;

use super::{contains::form, extract::last_boxed};

/// The most choices: each has a letter.
const MOST: usize = 26;

/// The choices of a task.
#[derive(Clone, Copy)]
pub(super) struct Choices<'a>(pub(super) &'a [String]);

impl Choices<'_> {
    pub(super) fn check(self) -> Result<(), String> {
        if self.0.len() == 1 || self.0.len() > MOST {
            return Err(format!("`choices` must have 2 to {MOST} answers, found {}", self.0.len()));
        }
        let mut forms: Vec<String> = self.0.iter().map(|choice| form(choice)).collect();
        forms.sort_unstable();
        match forms.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("`choices` has `{}` twice", pair[0])),
            None => Ok(()),
        }
    }

    fn letters(self) -> impl Iterator<Item = char> {
        ('A'..='Z').take(self.0.len())
    }

    /// The choices as the model reads them.
    pub(super) fn listed(self) -> String {
        let lines: Vec<String> =
            self.letters().zip(self.0).map(|(letter, choice)| format!("{letter}) {choice}")).collect();
        let letters: Vec<String> = self.letters().map(String::from).collect();
        format!(
            "{}\n\nThe last line of your answer is `ANSWER: LETTER`, where LETTER is one of {}.",
            lines.join("\n"),
            letters.join(", ")
        )
    }

    /// The choice that a text is: its letter, its text, or both.
    pub(super) fn named(self, text: &str) -> Option<usize> {
        static MARKED: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new(r"^\(?([A-Za-z])(?:$|\)|[.:](?:\s|$)|\s+-\s)").ok());
        let text = text.trim().trim_matches(['*', '_', '`', '$', '"', '\'']).trim().trim_end_matches('.');
        let wanted = form(text);
        let letter = |letter: char| self.letters().position(|own| own == letter.to_ascii_uppercase());
        let mut characters = text.chars();
        if let (Some(only), None) = (characters.next(), characters.next())
            && let Some(found) = letter(only)
        {
            return Some(found);
        }
        if let Some(found) = self.0.iter().position(|choice| form(choice.trim_end_matches('.')) == wanted) {
            return Some(found);
        }
        // `B) Rome` is B, unless it is B with the text of another choice.
        let marked = MARKED.as_ref()?.captures(text)?;
        let found = letter(marked[1].chars().next()?)?;
        let rest = form(text[marked[0].len()..].trim());
        let other = self.0.iter().position(|choice| form(choice.trim_end_matches('.')) == rest);
        (other.is_none() || other == Some(found)).then_some(found)
    }

    /// The choice that an answer names: behind the last `ANSWER:`, in its last box, as its last line, or as a whole.
    pub(super) fn chosen(self, answer: &str) -> Option<usize> {
        static ANSWER: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new(r"(?im)\banswer\W{0,4}\s*(?:is)?\s*[:=]\s*(\S[^\n]*)").ok());
        if let Some(inner) = last_boxed(answer) {
            let inner = inner.trim();
            let plain =
                inner.strip_prefix("\\text{").and_then(|rest| rest.strip_suffix('}')).unwrap_or(inner);
            if let Some(found) = self.named(plain) {
                return Some(found);
            }
        }
        if let Some(said) = ANSWER.as_ref()?.captures_iter(answer).last() {
            let said = &said[1];
            // More may follow on the line: `ANSWER: B, since ...`.
            return self.named(said).or_else(|| {
                let (first, rest) = said.split_once([',', ';', '.'])?;
                let two = self.named(rest).is_some();
                self.named(first).filter(|_| !two)
            });
        }
        let last = answer.lines().rev().find(|line| !line.trim().is_empty())?;
        self.named(answer).or_else(|| self.named(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cities() -> Vec<String> {
        ["Paris", "Rome", "A village"].map(str::to_owned).to_vec()
    }

    #[test]
    fn letters_and_texts_are_taken_in_the_forms_that_models_use() {
        let cities = cities();
        let choices = Choices(&cities);
        for answer in [
            "ANSWER: B",
            "Paris is A, so...\nANSWER: B",
            "The capital is Rome.\n\n**ANSWER: B**",
            "**Answer:** B",
            "answer: (b).",
            "ANSWER: B) Rome",
            "ANSWER: Rome",
            "ANSWER: B, since it is the capital",
            "ANSWER: A\nNo, wait.\nANSWER: B",
            "B",
            "(B)",
            "B.",
            "**B**",
            "rome",
            "B) Rome",
            r"so \boxed{B}",
            r"so \boxed{\text{B}}",
            "I think so:\nB",
        ] {
            assert_eq!(choices.chosen(answer), Some(1), "{answer}");
        }
        for answer in [
            "",
            "A or B",
            "ANSWER: D",
            "ANSWER: A) Rome",
            "ANSWER: A, B",
            "ANSWER: A or B",
            "It is B or so",
            "Rome and Paris",
            "ANSWER:",
        ] {
            assert_eq!(choices.chosen(answer), None, "{answer}");
        }
        assert_eq!(choices.chosen("A village"), Some(2), "a text that begins with a letter");
    }

    #[test]
    fn choices_are_listed_with_their_letters() {
        let cities = cities();
        let listed = Choices(&cities).listed();
        assert!(listed.starts_with("A) Paris\nB) Rome\nC) A village\n"), "{listed}");
        assert!(listed.ends_with("LETTER is one of A, B, C."), "{listed}");
    }

    #[test]
    fn choices_that_cannot_be_told_apart_are_refused() {
        let check = |choices: &[&str]| {
            let choices: Vec<String> = choices.iter().map(|choice| (*choice).to_owned()).collect();
            Choices(&choices).check()
        };
        assert!(check(&[]).is_ok() && check(&["a", "b"]).is_ok());
        assert!(check(&["one"]).unwrap_err().contains("2 to 26"));
        assert!(check(&["Rome", "rome "]).unwrap_err().contains("twice"));
        assert!(check(&(0..27).map(|_| "x").collect::<Vec<_>>()).is_err());
    }
}
