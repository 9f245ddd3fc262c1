//! Words of servers in errors of ours.

/// A server's words in an error of ours: as long as a person reads.
pub(in crate::session) fn brief(message: &str) -> String {
    const MOST: usize = 2000;
    match message.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}... ({} bytes)", &message[..end], message.len()),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_strings_are_cut() {
        assert_eq!(brief("short ä"), "short ä");
        let long = brief(&"ä".repeat(3000));
        assert!(long.ends_with("ä... (6000 bytes)") && long.len() < 4100);
    }
}
