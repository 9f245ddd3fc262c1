//! The `[extract]` table as written.

use crate::{
    config::{
        ExtractConfig,
        file::{section::Section, source_location::Text},
    },
    error::Result,
};

pub(in crate::config) const EXTRACT: &[&str] = &["client", "prompt", "max_chars"];

/// The table, if there is one, and the client that it names.
pub(super) fn read(root: &Section<'_>) -> Result<Option<(ExtractConfig, Option<Text>)>> {
    let Some(table) = &root.table("extract", EXTRACT)? else { return Ok(None) };
    let mut extract = ExtractConfig::default();
    if let Some(prompt) = table.text("prompt")? {
        for place in ["{question}", "{page}"] {
            if !prompt.value.contains(place) {
                let help = "say where the question and the page go";
                return Err(table.key_error("prompt", format!("has no `{place}`"), Some(help)));
            }
        }
        extract.prompt = prompt.value;
    }
    if let Some(most) = table.number::<usize>("max_chars", 1)? {
        extract.max_chars = most;
    }
    let client = table.text("client")?;
    extract.client = client.as_ref().map(|client| client.value.clone());
    Ok(Some((extract, client)))
}
