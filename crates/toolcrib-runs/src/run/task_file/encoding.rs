//! The text of a file of tasks: UTF-8, or UTF-16 with a byte order mark, as Excel writes "Unicode text". For anything else the
//! error names the likely format.

/// Byte order marks of UTF-16.
const LITTLE: &[u8] = &[0xff, 0xfe];
const BIG: &[u8] = &[0xfe, 0xff];
/// So many bytes show whether a text has two bytes for each character.
const LOOKED_AT: usize = 4096;

/// Whether a file that begins so must be decoded as a whole.
pub(in crate::run) fn is_utf_16(beginning: &[u8]) -> bool {
    beginning.starts_with(LITTLE) || beginning.starts_with(BIG)
}

/// The text of these bytes, without a byte order mark of UTF-16.
///
/// # Errors
/// What they seem to be, and what to do.
pub(in crate::run) fn decode(bytes: Vec<u8>) -> Result<String, String> {
    let utf_16 = |read: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|pair| read([pair[0], pair[1]]));
        char::decode_utf16(units).collect::<Result<String, _>>()
    };
    let decoded = match &bytes {
        bytes if bytes.starts_with(LITTLE) => utf_16(u16::from_le_bytes),
        bytes if bytes.starts_with(BIG) => utf_16(u16::from_be_bytes),
        bytes if is_wide(bytes) => {
            return Err("it seems to be UTF-16 without a byte order mark: save it as UTF-8".to_owned());
        }
        _ => return String::from_utf8(bytes).map_err(|error| complaint(error.as_bytes(), 1)),
    };
    decoded.map_err(|_| "it begins like UTF-16, and is not: save it as UTF-8".to_owned())
}

/// Describes why `bytes` are not UTF-8; their first line has the number `line`.
pub(in crate::run) fn complaint(bytes: &[u8], line: usize) -> String {
    if bytes.starts_with(b"PK\x03\x04") {
        return "it is a workbook of Excel or another zip archive: export it as CSV (UTF-8)".to_owned();
    }
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return "it is compressed by gzip: unpack it first".to_owned();
    }
    let Err(error) = str::from_utf8(bytes) else { return "it is no text".to_owned() };
    let at = error.valid_up_to();
    let line = line + memchr::memchr_iter(b'\n', &bytes[..at]).count();
    let byte = bytes.get(at).copied().unwrap_or_default();
    // Latin-1 and its like have one byte for a letter with an accent, among letters of ASCII.
    let is_letter = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii);
    let is_latin = byte >= 0xa0 && is_letter(bytes.get(at + 1)) && is_letter(bytes.get(at.wrapping_sub(1)));
    let seems = if is_latin { "; it seems to be Latin-1 (Windows-1252)" } else { "" };
    format!(
        "it is not UTF-8: line {line} has the byte 0x{byte:02X}{seems}. Save it as \"CSV UTF-8\", or convert it: \
         iconv -f WINDOWS-1252 -t UTF-8 FILE"
    )
}

/// Whether every second byte is zero, as in UTF-16 of a text in English.
fn is_wide(bytes: &[u8]) -> bool {
    let some = &bytes[..bytes.len().min(LOOKED_AT)];
    let zeros = |from: usize| some.iter().skip(from).step_by(2).filter(|byte| **byte == 0).count();
    some.len() >= 4 && (zeros(0) * 4 > some.len() || zeros(1) * 4 > some.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf_16_is_read_and_other_encodings_are_named() {
        let wide =
            |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        assert_eq!(decode(wide("\u{feff}a,\u{1f600}\n", u16::to_le_bytes)).unwrap(), "a,\u{1f600}\n");
        assert_eq!(decode(wide("\u{feff}K\u{f6}ln", u16::to_be_bytes)).unwrap(), "K\u{f6}ln");
        assert_eq!(decode("\u{feff}K\u{f6}ln".into()).unwrap(), "\u{feff}K\u{f6}ln");
        for (bytes, words) in [
            (b"input\nK\xf6ln".to_vec(), "line 2 has the byte 0xF6; it seems to be Latin-1"),
            (b"input\n\x80\x81".to_vec(), "it is not UTF-8: line 2 has the byte 0x80. Save"),
            (wide("input,target", u16::to_le_bytes), "UTF-16 without a byte order mark"),
            (b"\xff\xfe\x00\xd8".to_vec(), "begins like UTF-16"),
            (b"PK\x03\x04\xff".to_vec(), "a workbook of Excel"),
        ] {
            let error = decode(bytes).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
