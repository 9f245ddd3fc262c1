//! Tests which tool calls are corrected and which are not.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    catalog::ToolCatalog,
    tool::{ServerName, Tool},
};

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("not an object: {other}"),
    }
}

fn tool(name: &str, properties: &Value, required: &[&str]) -> Tool {
    let schema = json!({"type": "object", "properties": properties, "required": required,
        "additionalProperties": false});
    Tool::new(name, "", object(schema))
}

fn catalog() -> ToolCatalog {
    let text = json!({"text": {"type": "string"}});
    let code =
        json!({"code_block": {"type": "string"}, "sandbox_id": {"type": "string", "default": "default"}});
    let scrape = json!({"url": {"type": "string"}, "info_to_extract": {"type": "string"},
        "pages": {"type": "integer"}});
    let server = |name| ServerName::new(name).unwrap();
    let scrape = tool("scrape_and_extract_info", &scrape, &["url", "info_to_extract"]);
    ToolCatalog::new([
        (server("tool-python"), vec![tool("run_python_code", &code, &["code_block", "sandbox_id"])]),
        (server("search.web"), vec![tool("google_search", &text, &["text"]), tool("open", &text, &["text"])]),
        (server("jina"), vec![scrape, tool("open", &text, &["text"])]),
        (server("users"), vec![tool("get_user", &text, &[]), tool("set_user", &text, &[])]),
    ])
}

fn aliases() -> Aliases {
    let pairs =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    Aliases {
        tools: pairs(&[("python", "run_python_code"), ("open_page", "open"), ("get_user", "set_user")]),
        arguments: pairs(&[("description", "info_to_extract"), ("url", "info_to_extract")]),
    }
}

/// The tool that is found and the kinds of corrections, `many` or `none`.
fn found(server: Option<&str>, tool: &str) -> String {
    let catalog = catalog();
    match find(catalog.entries(), WantedTool { server, tool }, Some(&aliases())) {
        FoundTool::One(entry, done) => {
            let kinds: Vec<String> = done.iter().map(|done| format!("{:?}", done.kind)).collect();
            format!("{} {}", entry.path(), kinds.join(" ")).trim().to_owned()
        }
        FoundTool::Many(_) => "many".to_owned(),
        FoundTool::None => "none".to_owned(),
    }
}

#[test]
fn names_are_corrected_if_one_tool_matches() {
    for (server, name, expected) in [
        (Some("search.web"), "google_search", "search.web.google_search"),
        (Some("tool-python"), "google_search", "search.web.google_search Server"),
        (Some("search-web"), "googleSearch", "search.web.google_search Server Tool"),
        (Some("x"), "Google-Search", "search.web.google_search Server Tool"),
        (Some("tool-python"), "python", "tool-python.run_python_code Tool"),
        (Some("search.web"), "python", "tool-python.run_python_code Server Tool"),
        (Some("jina"), "open", "jina.open"),
        (Some("jina"), "open_page", "jina.open Tool"),
        (Some("x"), "open", "many"),
        (Some("x"), "open_page", "many"),
        (None, "search_web__google_search", "search.web.google_search"),
        (None, "search.web.google_search", "search.web.google_search"),
        (None, "search-web.google_search", "search.web.google_search Server"),
        (None, "searchWeb_googleSearch", "search.web.google_search Tool"),
        (None, "google_search", "search.web.google_search Server"),
        (None, "jina__google_search", "search.web.google_search Server"),
        (None, "python", "tool-python.run_python_code Tool"),
        (None, "tool-python__python", "tool-python.run_python_code Tool"),
        (None, "tool_python__python", "tool-python.run_python_code Tool"),
        (None, "tool-python.python", "tool-python.run_python_code Tool"),
        (None, "Tool_Python/Python", "tool-python.run_python_code Tool"),
        (None, "py__python", "tool-python.run_python_code Tool"),
        (None, "jina__python", "tool-python.run_python_code Tool"),
        (None, "jina__open_page", "jina.open Tool"),
        (None, "search.web.open_page", "search.web.open Tool"),
        (None, "x__open_page", "many"),
        (Some("tool-python"), "tool-python__python", "tool-python.run_python_code Tool"),
        (Some("jina"), "jina.open_page", "jina.open Tool"),
        (None, "tool-pythonpythons", "none"),
        (None, "open", "many"),
        // What is near is not what is meant.
        (None, "gogle_search", "none"),
        (Some("users"), "sett_user", "none"),
        // A name that exists is not replaced.
        (Some("users"), "get_user", "users.get_user"),
    ] {
        assert_eq!(found(server, name), expected, "{server:?} {name}");
    }
    let catalog = catalog();
    let strict = |tool| find(catalog.entries(), WantedTool { server: None, tool }, None);
    assert!(matches!(strict("google_search"), FoundTool::None));
    for name in ["search_web__google_search", "search.web.google_search"] {
        assert!(matches!(strict(name), FoundTool::One(_, done) if done.is_empty()));
    }
    assert!(matches!(strict("search_web.google_search"), FoundTool::None));
}

fn entry(path: &str) -> Arc<CatalogEntry> {
    catalog().find_path(path).unwrap().clone()
}

#[test]
fn arguments_are_corrected_if_the_schema_allows_one() {
    let python = entry("tool-python.run_python_code");
    let scrape = entry("jina.scrape_and_extract_info");
    for (entry, given, expected) in [
        (&python, json!({"code": "1"}), json!({"code_block": "1", "sandbox_id": "default"})),
        (
            &python,
            json!({"codeBlock": "1", "sandbox_id": "a"}),
            json!({"code_block": "1", "sandbox_id": "a"}),
        ),
        (&scrape, json!({"url": "u", "description": "d"}), json!({"url": "u", "info_to_extract": "d"})),
        (
            &scrape,
            json!({"url": "u", "what": "d", "pages": null}),
            json!({"url": "u", "info_to_extract": "d"}),
        ),
    ] {
        let (fixed, done) = arguments(entry, &object(given.clone()), &aliases()).unwrap();
        assert_eq!(Value::from(fixed), expected, "{given}");
        assert!(!done.is_empty());
    }
    for (entry, given) in [
        // Two could be it, or two could be meant.
        (&scrape, json!({"a": "u"})),
        (&scrape, json!({"url": "u", "a": "x", "b": "y"})),
        // Another kind.
        (&scrape, json!({"url": "u", "what": 1})),
        // Still wrong afterwards: nothing is sent.
        (&python, json!({"code": "1", "n": 2})),
        (&python, json!({"sandbox_id": 7})),
    ] {
        assert_eq!(arguments(entry, &object(given.clone()), &aliases()), None, "{given}");
    }
}

#[test]
fn texts_with_one_reading_are_corrections() {
    let scrape = entry("jina.scrape_and_extract_info");
    let given = object(json!({"url": "u", "description": "d", "pages": "3"}));
    let (fixed, done) = arguments(&scrape, &given, &aliases()).unwrap();
    assert_eq!(Value::from(fixed), json!({"url": "u", "info_to_extract": "d", "pages": 3}));
    let text = done.iter().find(|done| done.kind == CorrectionKind::Text).unwrap();
    assert_eq!((&*text.from, &*text.to), ("pages: \"3\"", "pages: 3"));
    // A text where a text is wanted stays, whatever it looks like.
    let given = object(json!({"url": "5", "info_to_extract": "[1]", "pages": "three"}));
    assert_eq!(arguments(&scrape, &given, &aliases()), None);
    let catalog = catalog().with_argument_checks(|_| ArgumentCheck::Refuse);
    let strict = catalog.find_path("jina.scrape_and_extract_info").unwrap();
    let given = object(json!({"url": "u", "info_to_extract": "d", "pages": "3"}));
    assert_eq!(arguments(strict, &given, &aliases()), None);
}
