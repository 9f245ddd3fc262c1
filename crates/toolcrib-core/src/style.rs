//! The style sheet of all HTML pages: of runs, `view`, `bench init` and the gateway.

/// Colours after Okabe and Ito, who chose them for colour-blind readers; patterns have the same meaning.
pub const STYLE: &str = include_str!("style.css");
