//! Hides secrets in what a server writes to its standard error.

use toolcrib_guard::Redact;

use super::Secrets;

impl Redact for Secrets {
    fn redact(&self, line: &str, is_cut: bool) -> String {
        if is_cut { self.hide_cut(line) } else { self.hide(line) }
    }
}
