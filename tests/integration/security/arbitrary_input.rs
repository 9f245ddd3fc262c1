//! Arbitrary input through the public interface: it is accepted or refused with a message, and nothing panics.

use std::{collections::HashSet, path::Path};

use proptest::prelude::*;
use serde_json::{Map, json};
use toolcrib::{Config, Env, ServerName, Tool, ToolCatalog, config::import_toml, run::parse_tasks};

/// Text that looks like configuration often enough to get past the first look.
fn almost_toml() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        Just("[servers.a]\n".to_owned()),
        Just("[defaults]\n".to_owned()),
        Just("[llm]\n".to_owned()),
        Just("command = \"x\"\n".to_owned()),
        Just("builtin = \"time\"\n".to_owned()),
        Just("env = { A = \"${B:-${C}}\" }\n".to_owned()),
        Just("args = [\"${\", \"$${x}\", \"${env:}\"]\n".to_owned()),
        Just("memory_max = \"1GiB\"\n".to_owned()),
        Just("restart = { backoff = \"1s..2s\" }\n".to_owned()),
        "[a-z_]{1,12} = [0-9\"'\\[\\]{},.$a-z ]{0,20}\n",
        "\\PC{0,30}\n",
    ];
    prop::collection::vec(word, 0..12).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_configuration_is_read_or_refused(text in almost_toml()) {
        match Config::parse(&text, None, Path::new("/tmp"), &Env::process()) {
            Ok(config) => prop_assert!(config.servers.len() <= 1),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn any_task_file_is_read_or_refused(text in "(\\{\"id\": ?\"[a-z]\", ?\"(input|calls|x)\": ?[\\[\\]{}\"a-z0-9,:]{0,20}\\}\n|\\PC{0,40}\n){0,6}") {
        if let Err(error) = parse_tasks("tasks.jsonl", &text) {
            prop_assert!(error.to_string().contains("tasks.jsonl"), "{error}");
        }
    }

    #[test]
    fn any_foreign_configuration_is_translated_or_refused(text in "(\\{\"mcpServers\":)?\\PC{0,60}\\}?") {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mcp.json");
        std::fs::write(&file, text).unwrap();
        if let Err(error) = import_toml(file.to_str().unwrap(), &Env::process()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn visible_names_fit_every_model_and_are_unique(
        servers in prop::collection::vec("[a-zA-Z0-9_-]{1,20}", 1..4),
        tools in prop::collection::vec("\\PC{1,90}", 1..12),
    ) {
        let servers: HashSet<String> = servers.into_iter().collect();
        let tools: HashSet<String> = tools.into_iter().collect();
        let list = |_: &ServerName| tools.iter().map(|name| tool(name)).collect::<Vec<_>>();
        let named = servers.iter().filter_map(|name| ServerName::new(name).ok());
        let catalog = ToolCatalog::new(named.map(|name| (name.clone(), list(&name))));
        let mut seen = HashSet::new();
        for entry in catalog.entries() {
            let name = entry.visible_name.as_str();
            prop_assert!((1..=64).contains(&name.len()), "{name}");
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)), "{name}");
            prop_assert!(seen.insert(name.to_owned()), "{name} twice");
        }
    }
}

fn tool(name: &str) -> Tool {
    let schema = json!({"type": "object"}).as_object().cloned().unwrap_or_else(Map::new);
    Tool::new(name, "", schema)
}
