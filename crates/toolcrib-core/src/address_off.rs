//! The module `address` of a build without the feature `http`, which uses no address.

/// Finds no problem.
pub(crate) fn problem(_: &str) -> Option<String> {
    None
}

/// Knows neither.
pub(crate) fn host_and_port(_: &str) -> (Option<String>, Option<u16>) {
    (None, None)
}

/// Knows no form: a configuration with rules on arguments is refused.
pub(crate) fn forms(_: &str) -> Vec<String> {
    Vec::new()
}
