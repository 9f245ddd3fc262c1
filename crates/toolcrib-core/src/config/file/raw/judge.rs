//! The `[judge]` table as written.

use crate::{
    config::{
        JudgeConfig,
        file::{
            node::{Entry, Value},
            section::Section,
            source_location::Text,
        },
    },
    error::Result,
};

pub(in crate::config) const JUDGE: &[&str] = &["client", "prompt", "verdict", "grades"];

/// The table, and the client that it names.
pub(super) fn read(root: &Section<'_>) -> Result<(JudgeConfig, Option<Text>)> {
    let mut judge = JudgeConfig::default();
    let Some(table) = &root.table("judge", JUDGE)? else { return Ok((judge, None)) };
    if let Some(prompt) = table.text("prompt")? {
        if !prompt.value.contains("{answer}") {
            return Err(table.key_error("prompt", "has no `{answer}`", Some("say where the answer goes")));
        }
        judge.prompt = prompt.value;
    }
    if let Some(verdict) = table.regex("verdict")? {
        if verdict.captures_len() < 2 {
            let help = "put the grade into parentheses: verdict = 'GRADE: (C|I)'";
            return Err(table.key_error("verdict", "has no group that is the grade", Some(help)));
        }
        judge.verdict = verdict;
    }
    if table.has("grades") {
        judge.grades = grades(table)?;
        if !judge.grades.iter().any(|(_, score)| *score >= 1.0) {
            let help = "write grades = { C = 1, I = 0 }";
            return Err(table.key_error("grades", "has no grade for a right answer, which is 1", Some(help)));
        }
    }
    let client = table.text("client")?;
    judge.client = client.as_ref().map(|client| client.value.clone());
    Ok((judge, client))
}

fn grades(table: &Section<'_>) -> Result<Vec<(String, f64)>> {
    let entries = table.free_table("grades", "{ C = 1, I = 0 }")?.iter();
    let read = |entry: &Entry| {
        let score = match entry.node.value {
            Value::Int(number) => number as f64,
            Value::Float(number) => number,
            _ => f64::NAN,
        };
        match (0.0..=1.0).contains(&score) {
            true => Ok((entry.key.clone(), score)),
            false => {
                let message = format!("the score of `{}` must be a number from 0 to 1", entry.key);
                Err(table.key_error("grades", message, Some("write grades = { C = 1, I = 0 }")))
            }
        }
    };
    entries.map(read).collect()
}
