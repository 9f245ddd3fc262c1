//! `toolcrib schema`: the schemas that are printed, and the examples of the documents, which they must take.

use std::{fs, path::Path};

use serde_json::Value;

use crate::support::program::{Bench, code, out};

fn printed(of: &[&str]) -> Value {
    let output = Bench::new("").run(&[&["schema"], of].concat());
    assert_eq!(code(&output), 0);
    serde_json::from_str(&out(&output)).unwrap()
}

fn mistakes(schema: &Value, document: &Value) -> Vec<String> {
    let schema = jsonschema::draft7::new(schema).unwrap();
    schema.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

/// The blocks of TOML in a document.
fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn the_schema_takes_all_configurations_in_the_documents() {
    let schema = printed(&[]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for page in pages.chain([root.join("README.md")]) {
        // This one has single keys, of the file that a test in toolcrib-core looks at.
        if page.extension().is_none_or(|ending| ending != "md") || page.ends_with("configuration.md") {
            continue;
        }
        let text = fs::read_to_string(&page).unwrap();
        for block in blocks(&text) {
            let Ok(document) = block.parse::<toml::Table>() else { continue };
            // There are examples of other files, too.
            let tables = ["servers", "defaults", "llm", "gateway", "agent", "profile"];
            if !tables.iter().any(|key| document.contains_key(*key)) {
                continue;
            }
            let document = serde_json::to_value(document).unwrap();
            assert_eq!(mistakes(&schema, &document), Vec::<String>::new(), "{}\n{block}", page.display());
            seen += 1;
        }
    }
    assert!(seen >= 8, "{seen} blocks");
}

#[test]
fn the_schema_of_tasks_takes_the_examples() {
    let schema = printed(&["tasks"]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tasks.jsonl");
    for line in fs::read_to_string(file).unwrap().lines() {
        assert_eq!(mistakes(&schema, &serde_json::from_str(line).unwrap()), Vec::<String>::new(), "{line}");
    }
    assert!(!mistakes(&schema, &serde_json::json!({"inptu": "x"})).is_empty());
}
