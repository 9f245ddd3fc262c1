//! The name that a mistyped one most likely meant, within a budget: names come from models, servers and clients.

/// Letters of the longest name that is compared. Longer texts are not mistyped names, and comparing two takes the
/// product of their lengths.
const LONGEST: usize = 64;
/// The least similarity of two names of which one is meant by the other.
const ALIKE: f64 = 0.6;
/// Steps of one budget: some milliseconds.
const STEPS: usize = 4_000_000;
/// Steps for each name that is looked at, beside those for its letters.
const FOR_A_NAME: usize = 50;

/// How much may still be compared for one answer of a model, one call or one message. Once it is used up there are no
/// further suggestions.
#[derive(Debug)]
pub struct Comparisons(usize);

impl Default for Comparisons {
    fn default() -> Self {
        Self(STEPS)
    }
}

impl Comparisons {
    /// Takes the steps of looking at so many names. `false`: there are not so many left.
    pub fn take(&mut self, names: usize) -> bool {
        let left = self.0.checked_sub(names.saturating_mul(FOR_A_NAME));
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// Finds a name like [`nearest`], of those that are compared until the budget is used up.
    pub fn nearest<'a>(&mut self, typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
        let letters = letters_of(typed)?;
        let fold = |text: &str| text.to_ascii_lowercase().replace(['-', '.'], "_");
        let wanted = fold(typed);
        let mut best: Option<(f64, &str)> = None;
        for name in known {
            if !self.take(1) {
                break;
            }
            // Each letter that one has more than the other is a difference.
            let is_alike = |length: &usize| letters.abs_diff(*length) * 5 <= letters.max(*length) * 2;
            let Some(length) = letters_of(name).filter(is_alike) else { continue };
            match self.0.checked_sub(letters * length) {
                Some(left) => self.0 = left,
                None => {
                    self.0 = 0;
                    break;
                }
            }
            let similarity = strsim::normalized_damerau_levenshtein(&wanted, &fold(name));
            if similarity >= ALIKE && best.is_none_or(|(most, _)| similarity >= most) {
                best = Some((similarity, name));
            }
        }
        best.map(|(_, name)| name.to_owned())
    }
}

/// How many letters a name has, if it is not too long.
fn letters_of(name: &str) -> Option<usize> {
    // A letter has up to four bytes.
    let letters = (name.len() <= 4 * LONGEST).then(|| name.chars().count());
    letters.filter(|letters| *letters <= LONGEST)
}

/// The name in `known` that `typed` most likely meant: case and separators aside, or a small typo. Where several are
/// suggested for one answer, call or message, they share [`Comparisons`].
pub fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    Comparisons::default().nearest(typed, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_for_typos_only() {
        assert_eq!(
            nearest("get_curent_time", ["get_current_time", "convert"]),
            Some("get_current_time".into())
        );
        assert_eq!(nearest("weather", ["get_current_time", "convert"]), None);
        assert_eq!(nearest("Get-Time", ["set_time", "get_time"]), Some("get_time".into()));
    }

    #[test]
    fn suggestions_have_a_budget_of_comparisons() {
        let long = |letter: char| letter.to_string().repeat(LONGEST);
        let known: Vec<String> = (0..100_000).map(|n| format!("{}{n:06}", &long('a')[6..])).collect();
        let mut left = Comparisons::default();
        let known = || known.iter().map(String::as_str);
        // The last one is too far behind.
        let typed = format!("{}099999", &long('a')[6..]);
        assert_ne!(left.nearest(&typed, known()), Some(typed.clone()));
        assert_eq!(left.nearest("name", ["name"]), None, "the budget is used up");
        // One that is much longer or shorter costs next to nothing.
        let mut left = Comparisons::default();
        assert_eq!(left.nearest("abc", known().take(1000)), None);
        assert_eq!(left.0, STEPS - 1000 * FOR_A_NAME);
        assert_eq!(nearest(&format!("{}b", long('a')), [long('a').as_str()]), None, "it is no name");
    }
}
