//! The `[agent]` table as it is written.

use crate::{
    config::{AgentConfig, Aliases, ToolChoice, ToolProtocol, section::Section},
    error::Result,
};

pub(super) const AGENT: &[&str] = &[
    "system",
    "max_turns",
    "max_tool_calls",
    "max_time",
    "tool_choice",
    "tool_protocol",
    "max_result_chars",
    "correct_calls",
    "aliases",
];
pub(super) const ALIASES: &[&str] = &["tools", "arguments"];

/// Reads the table; `base` has the values of the keys that are not there.
pub(super) fn read(table: &Section<'_>, base: AgentConfig) -> Result<AgentConfig> {
    const CHOICES: &[(&str, ToolChoice)] = &[
        ("auto", ToolChoice::Auto),
        ("required", ToolChoice::Required),
        ("required_first", ToolChoice::RequiredFirst),
    ];
    const PROTOCOLS: &[(&str, ToolProtocol)] =
        &[("native", ToolProtocol::Native), ("xml", ToolProtocol::Xml)];
    let tool_choice = table.choice("tool_choice", CHOICES)?.unwrap_or(base.tool_choice);
    let tool_protocol = table.choice("tool_protocol", PROTOCOLS)?.unwrap_or(base.tool_protocol);
    if tool_protocol == ToolProtocol::Xml && tool_choice != ToolChoice::Auto {
        let help = "remove one of them: calls within the text cannot be required";
        return Err(table.key_error("tool_choice", "does not go with `tool_protocol = \"xml\"`", Some(help)));
    }
    Ok(AgentConfig {
        // A prompt is literal: `${...}` in it belongs to the author.
        system: table.text("system")?.map(|text| text.value).or(base.system),
        max_turns: table.number("max_turns", 1)?.unwrap_or(base.max_turns),
        max_tool_calls: table.number("max_tool_calls", 0)?.unwrap_or(base.max_tool_calls),
        max_time: table.duration("max_time")?.unwrap_or(base.max_time),
        tool_choice,
        tool_protocol,
        max_result_chars: table.number("max_result_chars", 1)?.unwrap_or(base.max_result_chars),
        correct_calls: table.flag("correct_calls")?.unwrap_or(base.correct_calls),
        aliases: table.table("aliases", ALIASES)?.map(|t| aliases(&t)).transpose()?.unwrap_or(base.aliases),
    })
}

fn aliases(table: &Section<'_>) -> Result<Aliases> {
    let names = |key| -> Result<_> {
        let pairs = table.text_map(key)?.into_iter().map(|(from, to)| (from, to.value));
        Ok(pairs.collect())
    };
    Ok(Aliases { tools: names("tools")?, arguments: names("arguments")? })
}
