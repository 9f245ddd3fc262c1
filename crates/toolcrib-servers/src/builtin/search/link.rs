//! Makes addresses readable: letters in place of percent codes, as long as the address stays the same.

/// Decodes what encodes letters and digits of any script, and leaves everything else as it is: a decoded slash, space
/// or mark of direction would make another address of it, or one that looks like another.
pub(super) fn readable(link: &str) -> String {
    let mut text = String::with_capacity(link.len());
    let mut rest = link;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        match letter(rest) {
            Some((letter, taken)) => {
                text.push(letter);
                rest = &rest[taken..];
            }
            None => {
                text.push('%');
                rest = &rest[1..];
            }
        }
    }
    text + rest
}

/// The letter that `text` begins with in percent codes, and the length of these.
fn letter(text: &str) -> Option<(char, usize)> {
    let mut bytes = Vec::with_capacity(4);
    for code in text.as_bytes().chunks_exact(3).take(4) {
        let [b'%', high, low] = *code else { break };
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(digit(high)? << 4 | digit(low)?);
        if let Ok(decoded) = std::str::from_utf8(&bytes) {
            let letter = decoded.chars().next()?;
            return letter.is_alphanumeric().then_some((letter, 3 * bytes.len()));
        }
    }
    None
}
