//! Finds a secret in a text, in any of the forms in which it can be written.
//!
//! Each of its characters stands as itself, or as one of: `%HH` of its bytes; `+` for a blank; `\uHHHH`; `\n` and the
//! like; backslashes before `"`, `/` and `\`. Letters of hexadecimal digits have either case. Backslashes may be
//! doubled, since JSON may be text in JSON: a result that is JSON, in a message, in a document.

use std::ops::Range;

use memchr::{memchr_iter, memchr2_iter, memmem::Finder};

/// How often backslashes before letters may have been doubled. JSON three times as text in JSON doubles them twice.
const BEFORE_LETTERS: [usize; 3] = [1, 2, 4];
/// Backslashes before a quotation mark.
const BEFORE_QUOTE: [usize; 3] = [1, 3, 7];
/// Backslashes that stand for one.
const FOR_ONE: [usize; 3] = [2, 4, 8];
/// No more of them are looked at.
const BACKSLASHES: usize = 8;
/// The longest form of one byte: four backslashes, `u` and four digits.
const LONGEST: usize = 9;

/// One value that is searched for.
pub(super) struct Form {
    value: Finder<'static>,
}

/// The result of comparing a text with a value from a place on.
#[derive(Debug, PartialEq, Eq)]
enum Follows {
    /// All of the value, up to here.
    Whole(usize),
    /// The text ends inside of the value, after so many of its characters.
    Cut(usize),
    Other,
}

impl Form {
    pub(super) fn new(value: &str) -> Self {
        Self { value: Finder::new(value).into_owned() }
    }

    /// The value as text.
    fn text(&self) -> &str {
        std::str::from_utf8(self.value.needle()).unwrap_or_default()
    }

    /// Where the value stands as it is.
    fn plain(&self, text: &str, found: &mut Vec<Range<usize>>) {
        let length = self.value.needle().len();
        let step = self.text().chars().next().map_or(1, char::len_utf8);
        let mut from = 0;
        while let Some(at) = text.as_bytes().get(from..).and_then(|rest| self.value.find(rest)) {
            found.push(from + at..from + at + length);
            from += at + step;
        }
    }

    /// Where the value stands, if `at` is the first of its characters that is not written as itself, and so many bytes
    /// of it are before.
    fn around(&self, text: &[u8], at: usize, before: usize) -> Option<Range<usize>> {
        let (begun, rest) = self.text().split_at(before);
        if !text[..at].ends_with(begun.as_bytes()) {
            return None;
        }
        match follows(text, at, rest) {
            Follows::Whole(end) => Some(at - before..end),
            _ => None,
        }
    }

    /// Where the value may begin that goes on after the end of `text`, with at least `least` of its characters.
    pub(super) fn begun(&self, text: &str, least: usize) -> Option<Range<usize>> {
        let (text_bytes, value) = (text.as_bytes(), self.value.needle());
        let window = text.len().saturating_sub(LONGEST * value.len());
        let begins = |at: &usize| {
            let byte = text_bytes[*at];
            value.first() == Some(&byte) || matches!(byte, b'%' | b'+' | b'\\')
        };
        let cut = |at: &usize| matches!(follows(text_bytes, *at, self.text()), Follows::Cut(n) if n >= least);
        (window..text.len()).filter(begins).find(cut).map(|at| at..text.len())
    }
}

/// All values, and what is known of them to pass over what is in none.
#[derive(Default)]
pub(super) struct Forms {
    pub(super) each: Vec<Form>,
    /// Each of their characters, in order: what it is and the byte before it, then which value it is in and where.
    letters: Vec<(char, Option<u8>, usize, usize)>,
    /// Which ASCII characters are in them, one bit each, and whether there are others.
    ascii: u128,
    others: bool,
}

impl Forms {
    pub(super) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for value in values {
            for (at, c) in value.char_indices() {
                match u32::from(c) {
                    code @ 0..128 => all.ascii |= 1 << code,
                    _ => all.others = true,
                }
                let before = value.as_bytes()[..at].last().copied();
                all.letters.push((c, before, all.each.len(), at));
            }
            all.each.push(Form::new(value));
        }
        all.letters.sort_unstable();
        all
    }

    /// The places of a character in values, where a byte is before it or nothing is.
    fn places(&self, c: char, before: Option<u8>) -> impl Iterator<Item = (&Form, usize)> {
        let from = self.letters.partition_point(|(other, byte, ..)| (*other, *byte) < (c, before));
        let same =
            self.letters[from..].iter().take_while(move |(other, byte, ..)| (*other, *byte) == (c, before));
        same.map(|(_, _, form, at)| (&self.each[*form], *at))
    }

    fn has(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii & (1 << u32::from(c)) != 0 } else { self.others }
    }

    /// Where values are in `text`: all of them, since one may begin inside of another.
    pub(super) fn found(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        if self.each.is_empty() {
            return found;
        }
        self.each.iter().for_each(|form| form.plain(text, &mut found));
        let bytes = text.as_bytes();
        let mut look = |at: usize| {
            for c in written(bytes, at).into_iter().flatten().filter(|c| self.has(*c)) {
                let before = bytes[..at].last().copied();
                // Of backslashes in a row the first is the one to begin at.
                let in_row = c == '\\' && bytes[at] == b'\\' && before == Some(b'\\');
                let behind =
                    before.filter(|_| !in_row).into_iter().flat_map(|before| self.places(c, Some(before)));
                let all = self.places(c, None).chain(behind);
                found.extend(all.filter_map(|(form, before)| form.around(bytes, at, before)));
            }
        };
        // The first character that is not written as itself.
        memchr2_iter(b'%', b'\\', bytes).for_each(&mut look);
        if self.has(' ') {
            memchr_iter(b'+', bytes).for_each(&mut look);
        }
        found
    }
}

/// The characters that the text at `at` may be an escape for.
fn written(text: &[u8], at: usize) -> [Option<char>; 2] {
    let rest = &text[at..];
    match rest.first() {
        Some(b'%') => [percent(rest), None],
        Some(b'+') => [Some(' '), None],
        _ => {
            let run = backslashes(rest);
            let behind = match rest.get(run) {
                Some(b'u') => unit(&rest[run + 1..]),
                Some(byte) => short(*byte),
                None => None,
            };
            [(run > 1).then_some('\\'), behind]
        }
    }
}

/// The character whose bytes are written `%HH` at the beginning of `text`.
fn percent(text: &[u8]) -> Option<char> {
    let byte = |at: usize| match text.get(at * 3..at * 3 + 3)? {
        [b'%', high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    let mut bytes = [byte(0)?, 0, 0, 0];
    let length = match bytes[0] {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    };
    for (at, place) in bytes.iter_mut().enumerate().take(length).skip(1) {
        *place = byte(at)?;
    }
    std::str::from_utf8(&bytes[..length]).ok()?.chars().next()
}

/// The character of `HHHH` at the beginning of `text`, or of that and a second unit behind it.
fn unit(text: &[u8]) -> Option<char> {
    let code = |text: &[u8]| {
        let code = text.get(..4)?.iter().try_fold(0, |code, byte| Some(code << 4 | digit(*byte)?))?;
        u16::try_from(code).ok()
    };
    let first = code(text)?;
    let second = || {
        let rest = &text[4..];
        let run = backslashes(rest);
        code(rest.get(run..)?.strip_prefix(b"u")?)
    };
    match char::from_u32(first.into()) {
        Some(c) => Some(c),
        None => char::decode_utf16([first, second()?]).next()?.ok(),
    }
}

fn digit(byte: u8) -> Option<u32> {
    char::from(byte).to_digit(16)
}

/// The character that JSON writes with a backslash and this byte.
fn short(byte: u8) -> Option<char> {
    Some(match byte {
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'"' | b'/' => char::from(byte),
        _ => return None,
    })
}

fn backslashes(text: &[u8]) -> usize {
    text.iter().take(BACKSLASHES).take_while(|byte| **byte == b'\\').count()
}

/// Whether `value` follows at `at`, however it is written.
fn follows(text: &[u8], at: usize, value: &str) -> Follows {
    // Most often there is one way to read what is there; `%25` may be a `%` that two digits follow.
    let mut places = vec![at];
    let mut next = Vec::new();
    let mut cut = None;
    for (number, c) in value.chars().enumerate() {
        next.clear();
        for place in &places {
            if reads(&text[*place..], c, |length| next.push(place + length)) {
                cut = Some(number);
            }
        }
        next.sort_unstable();
        next.dedup();
        std::mem::swap(&mut places, &mut next);
        if places.is_empty() {
            break;
        }
    }
    match (places.last(), cut) {
        (Some(end), _) => Follows::Whole(*end),
        (None, Some(number)) => Follows::Cut(number),
        (None, None) => Follows::Other,
    }
}

/// Tells the length of each way in which `c` is written at the beginning of `text`. Says whether `text` ends inside of
/// one.
fn reads(text: &[u8], c: char, mut way: impl FnMut(usize)) -> bool {
    let mut buffer = [0; 4];
    let raw = c.encode_utf8(&mut buffer).as_bytes();
    if text.starts_with(raw) {
        way(raw.len());
    }
    let mut cut = raw.len() > text.len() && raw.starts_with(text);
    let mut tell = |read: Read| match read {
        Read::Length(length) => way(length),
        Read::Cut => cut = true,
        Read::Other => {}
    };
    match text.first() {
        Some(b'%') => tell(percents(text, raw)),
        Some(b'+') if c == ' ' => tell(Read::Length(1)),
        Some(b'\\') => {
            let run = backslashes(text);
            if run == text.len() && run < BACKSLASHES {
                tell(Read::Cut);
            }
            if c == '\\' {
                FOR_ONE.iter().filter(|count| **count <= run).for_each(|count| tell(Read::Length(*count)));
            }
            if BEFORE_LETTERS.contains(&run) {
                tell(units(text, c));
            }
            if text.get(run).is_some_and(|byte| short(*byte) == Some(c)) {
                let may = match c {
                    '/' => run < BACKSLASHES,
                    '"' => BEFORE_QUOTE.contains(&run),
                    _ => BEFORE_LETTERS.contains(&run),
                };
                if may {
                    tell(Read::Length(run + 1));
                }
            }
        }
        _ => {}
    }
    cut
}

/// How a text begins.
enum Read {
    /// With all of it, in so many bytes.
    Length(usize),
    /// With as much of it as there is text.
    Cut,
    Other,
}

/// Whether `text` begins with `%HH` for each of `bytes`.
fn percents(text: &[u8], bytes: &[u8]) -> Read {
    let mut rest = text;
    for byte in bytes {
        match hexadecimal(rest, b'%', u32::from(*byte), 2) {
            Read::Length(length) => rest = &rest[length..],
            other => return other,
        }
    }
    Read::Length(text.len() - rest.len())
}

/// Whether `text` begins with backslashes and `uHHHH` for each unit of `c`.
fn units(text: &[u8], c: char) -> Read {
    let mut rest = text;
    for unit in c.encode_utf16(&mut [0; 2]) {
        let run = backslashes(rest);
        if run == rest.len() {
            return Read::Cut;
        }
        if !BEFORE_LETTERS.contains(&run) {
            return Read::Other;
        }
        match hexadecimal(&rest[run..], b'u', u32::from(*unit), 4) {
            Read::Length(length) => rest = &rest[run + length..],
            other => return other,
        }
    }
    Read::Length(text.len() - rest.len())
}

/// Whether `text` begins with `mark` and `code` in so many digits.
fn hexadecimal(text: &[u8], mark: u8, code: u32, digits: usize) -> Read {
    let expected = |at: usize| code >> (4 * (digits - 1 - at)) & 0xf;
    let agrees = text.first().is_none_or(|first| *first == mark)
        && text.iter().skip(1).take(digits).enumerate().all(|(at, byte)| digit(*byte) == Some(expected(at)));
    match agrees {
        true if text.len() > digits => Read::Length(1 + digits),
        true => Read::Cut,
        false => Read::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Secrets;
    use proptest::prelude::*;
    use serde_json::Value;

    fn hidden(value: &str, text: &str) -> String {
        Secrets::new([value.to_owned()]).hide(text)
    }

    #[test]
    fn secrets_are_hidden_in_the_escapes_of_every_library() {
        let token = "abC/dEf+ghi1==";
        for text in [
            "abC/dEf+ghi1==",
            "abC/dEf%2Bghi1%3D%3D",
            "abC%2fdEf%2bghi1%3d%3d",
            "abC%2FdEf+ghi1==",
            r"abC\/dEf+ghi1==",
            r"abC\\/dEf+ghi1==",
            r"abC\\\/dEf+ghi1==",
            r"abC/dEf\u002Bghi1\u003d\u003D",
            r"\u0061bC/dEf+ghi1==",
            "%61bC/dEf+ghi1%3d=",
        ] {
            assert_eq!(hidden(token, &format!("[{text}]")), "[****]", "{text}");
        }
        let password = "p@ss w:rd/7\u{e9}";
        for text in ["p@ss%20w:rd/7%C3%A9", "p@ss+w:rd/7%c3%a9", "p%40ss w:rd/7\u{e9}", r"p@ss w:rd\/7\u00E9"]
        {
            assert_eq!(hidden(password, &format!("<{text}>")), "<****>", "{text}");
        }
        assert_eq!(hidden("line1\nline-two\n", "a line1%0aline-two%0a"), "a ****");
        assert_eq!(hidden("line1\nline-two", r#""line1\nline-two""#), r#""****""#);
        assert_eq!(hidden("key\u{1f511}key", r"key\ud83d\uDD11key key%F0%9f%94%91key"), "**** ****");
        // What holds a percent sign or backslashes is found as it is, and written once more.
        assert_eq!(hidden("a%2Fb%2Fc", "a%2Fb%2Fc a%252Fb%252Fc a%252Fb%2Fc"), "**** **** ****");
        assert_eq!(hidden(r"C:\\x\y", r"C:\\x\y C:\\\\x\\y"), "**** ****");
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "abC/dEf%2Cghi1%3D%3D",
            "abC%2",
            r"abC\u002",
            r"abC\xdEf+ghi1==",
            "100% of \\ \\\\u",
            "%e4%b8",
            "%ff%fe",
            r"\ud83d\u0041",
            "%",
            "\\",
        ] {
            assert_eq!(hidden("abC/dEf+ghi1==", text), text);
        }
    }

    #[test]
    fn cut_secrets_are_hidden_in_every_form() {
        let secrets = Secrets::new(["abC/dEf+ghi1==".to_owned()]);
        for text in ["abC%2fdEf%2", "abC%2fdEf%", r"abC\/dE", r"abC\", r"abC\u00", "abC%2f", "%61b", "a"] {
            assert_eq!(secrets.hide_cut(&format!("is {text}")), "is ****", "{text}");
            assert_eq!(secrets.settled(&format!("is {text}")), 3, "{text}");
        }
        // Nothing of a secret is in these, but one may begin.
        for text in ["50%", r"C:\", "50%6", r"C:\u00"] {
            assert_eq!(secrets.hide_cut(text), text);
            assert_eq!(secrets.settled(text), 2, "{text}");
        }
    }

    #[test]
    fn long_repetitions_are_searched_quickly() {
        let secrets = Secrets::new([r"\\\\\\\\host\share".to_owned(), "%25%25%25%25%25".to_owned()]);
        for run in ["\\", "%25", "%5c", "\\u0025", "%", "+"] {
            let text = run.repeat(2_000);
            secrets.settled(&text);
            secrets.hide(&text);
        }
    }

    /// One character as one of its forms.
    fn write(c: char, way: u8) -> String {
        let (mut bytes, mut units) = ([0; 4], [0; 2]);
        let bytes = c.encode_utf8(&mut bytes).bytes();
        let units = c.encode_utf16(&mut units).iter();
        let all = |forms: Vec<String>| forms.concat();
        match way {
            0 => all(bytes.map(|byte| format!("%{byte:02x}")).collect()),
            1 => all(bytes.map(|byte| format!("%{byte:02X}")).collect()),
            2 if c == ' ' => "+".to_owned(),
            3 => all(units.map(|unit| format!("\\u{unit:04x}")).collect()),
            4 => all(units.map(|unit| format!("\\\\u{unit:04X}")).collect()),
            5 if c == '/' => "\\/".to_owned(),
            6 | 7 => {
                let quoted = Value::from(c.to_string()).to_string();
                let escaped = quoted[1..quoted.len() - 1].to_owned();
                if way == 6 { escaped } else { escaped.replace('\\', "\\\\").replace('"', "\\\"") }
            }
            _ => c.to_string(),
        }
    }

    proptest! {
        #[test]
        fn any_secret_in_any_form_is_hidden_and_nothing_else(
            written in prop::collection::vec(("[a-z0-9 /+=%\"\\\\:é\u{1f511}]", 0..12_u8), 6..24),
            before in "[A-Z<>. ]{0,12}",
            behind in "[A-Z<>. ]{0,12}",
        ) {
            let value: String = written.iter().map(|(c, _)| c.as_str()).collect();
            let text: String =
                written.iter().flat_map(|(c, way)| c.chars().map(|c| write(c, *way))).collect();
            let around = |text: &str| format!("{before}|{text}|{behind}");
            prop_assert_eq!(hidden(&format!("{value}z"), &around(&format!("{text}z"))), around("****"));
            let other = around(&format!("{text}#"));
            prop_assert_eq!(hidden(&format!("{value}z"), &other), other);
        }

        #[test]
        fn a_secret_cut_anywhere_is_hidden(
            written in prop::collection::vec(("[a-z0-9/+=:é]", 0..12_u8), 6..24),
            cut in 0..200_usize,
        ) {
            let value: String = written.iter().map(|(c, _)| c.as_str()).collect();
            let text: String =
                written.iter().flat_map(|(c, way)| c.chars().map(|c| write(c, *way))).collect();
            let mut cut = cut.min(text.len());
            while !text.is_char_boundary(cut) {
                cut -= 1;
            }
            let first = written.first().map_or(0, |(c, way)| write(c.chars().next().unwrap(), *way).len());
            let secrets = Secrets::new([value]);
            let begun = format!("A|{}", &text[..cut]);
            prop_assert_eq!(secrets.settled(&begun), if cut == text.len() { secrets.settled(&begun) } else { 2 });
            if cut >= first {
                prop_assert_eq!(secrets.hide_cut(&begun), "A|****");
            }
        }
    }
}
