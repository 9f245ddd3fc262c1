//! The unit of a `timeout` in a foreign file: tools write the same key in seconds or in milliseconds.

use std::{path::Path, time::Duration};

/// The unit of `timeout`, and how it is known.
pub(super) struct Unit {
    pub(super) length: Duration,
    name: &'static str,
    /// The tool that counts so. `None`: it was concluded from the number.
    tool: Option<&'static str>,
}

/// It ignores a timeout below a second. A file of it that has one was most likely written for another tool.
const CLAUDE_CODE: &str = "Claude Code";

/// Folders and files that belong to one tool, whether it counts seconds, and its name.
const PLACES: [(&str, bool, &str); 18] = [
    (".roo", true, "Roo Code"),
    ("mcp_settings.json", true, "Roo Code"),
    (".kilocode", true, "Kilo Code"),
    (".cline", true, "Cline"),
    ("cline_mcp_settings.json", true, "Cline"),
    (".gemini", false, "Gemini CLI"),
    (".qwen", false, "Qwen Code"),
    (".kiro", false, "Kiro"),
    (".aws", false, "Amazon Q"),
    (".amazonq", false, "Amazon Q"),
    (".copilot", false, "Copilot CLI"),
    (".mcp.json", false, CLAUDE_CODE),
    (".claude", false, CLAUDE_CODE),
    (".claude.json", false, CLAUDE_CODE),
    ("goose", true, "Goose"),
    ("crush", true, "Crush"),
    ("crush.json", true, "Crush"),
    (".crush.json", true, "Crush"),
];

/// Numbers below this are seconds if the tool is not known: no tool lets a call take less than a second, and of those that
/// count seconds none lets it take a quarter of an hour.
const LEAST_MILLIS: f64 = 1000.0;

impl Unit {
    /// The unit of `number` in `file`: that of the tool whose file it is, else the one that makes sense.
    pub(super) fn of(number: Option<f64>, file: &Path) -> Self {
        let parts = || file.components().filter_map(|part| part.as_os_str().to_str());
        let is_small = number.is_some_and(|number| number < LEAST_MILLIS);
        let known = PLACES.iter().find(|(place, ..)| parts().any(|part| part == *place));
        let (seconds, tool) = match known.filter(|(.., tool)| !(is_small && *tool == CLAUDE_CODE)) {
            Some((_, seconds, tool)) => (*seconds, Some(*tool)),
            None => (is_small, None),
        };
        let (length, name) = match seconds {
            true => (Duration::from_secs(1), "seconds"),
            false => (Duration::from_millis(1), "milliseconds"),
        };
        Self { length, name, tool }
    }

    pub(super) fn is_guess(&self) -> bool {
        self.tool.is_none()
    }

    /// How `number` was read, as a note.
    pub(super) fn note(&self, number: f64, read: &str) -> String {
        let why = match self.tool {
            Some(tool) => format!("the unit of {tool}"),
            None => "by its size, since the file does not say which tool counts".to_owned(),
        };
        format!("{number} read as {} ({why}): call_timeout = \"{read}\"", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_or_else_the_number_decides_the_unit() {
        let secs = |file: &str, number: f64| {
            let unit = Unit::of(Some(number), Path::new(file));
            (unit.length.as_secs_f64() * number, unit.is_guess())
        };
        assert_eq!(secs("/p/.roo/mcp.json", 60.0), (60.0, false));
        assert_eq!(secs("/h/globalStorage/x/settings/cline_mcp_settings.json", 1800.0), (1800.0, false));
        assert_eq!(secs("/h/.gemini/settings.json", 500.0), (0.5, false));
        assert_eq!(secs("/p/.mcp.json", 60.0), (60.0, true));
        assert_eq!(secs("/p/.mcp.json", 60_000.0), (60.0, false));
        assert_eq!(secs("/p/not.roo/mcp.json", 2000.0), (2.0, true));
    }
}
