//! A tool that searches in place of a long list, and other names for tools.

use super::*;

const SEARCH: &str = r#"
[gateway]
search = true
tokens = [
  { name = "all", token = "gate-token-0123456789" },
  { name = "few", token = "few-token-0123456789", tools = ["fix.e*", "fix.b*"] },
]
"#;

/// The fixture without one tool and with another name for another.
const TWO: &str = r#"
[servers.fix]
command = FIXTURE
required = true
tools = { deny = ["effect"], rename = { echo = "say_again" } }
[servers.time]
builtin = "time"
"#;

fn result(gate: &Gate, token: &str, method: &str, params: Value) -> Value {
    let (mut headers, message) = modern(1, method, params);
    headers.push(("Authorization", format!("Bearer {token}")));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    gate.ask("POST /mcp", &headers, &message.to_string()).json()["result"].clone()
}

fn called(gate: &Gate, token: &str, tool: &str, arguments: &Value) -> (bool, String) {
    let result = result(gate, token, "tools/call", json!({"name": tool, "arguments": arguments}));
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"));
    (result["isError"] == true, text.to_owned())
}

/// The names that a search gives.
fn found(gate: &Gate, token: &str, query: &str) -> Vec<String> {
    let (_, text) = called(gate, token, "search_tools", &json!({"query": query, "limit": 20}));
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    text.lines().filter(|line| line.starts_with('{')).map(name).collect()
}

#[test]
fn tools_are_found_and_called_by_two_tools() {
    const ALL: &str = "gate-token-0123456789";
    let gate = Gate::new(&format!("{TWO}{SEARCH}"));
    let list = result(&gate, ALL, "tools/list", json!({}));
    let tools = list["tools"].as_array().unwrap();
    let names: Vec<&Value> = tools.iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["search_tools", "call_tool"]);
    let description = tools[0]["description"].as_str().unwrap();
    assert!(description.contains("fix (11), time (3)"), "{description}");
    assert_eq!(found(&gate, ALL, "convert a time between zones")[0], "time__convert");
    assert_eq!(found(&gate, ALL, "say again"), ["fix__say_again"], "by its new name");
    assert_eq!(found(&gate, ALL, "effect"), ["fix__die_after_effect"], "not one that is denied");
    let (_, text) = called(&gate, ALL, "search_tools", &json!({"query": "fixture", "limit": 2}));
    assert_eq!(text.lines().count(), 2, "{text}");
    let (_, none) = called(&gate, ALL, "search_tools", &json!({"query": "quantum"}));
    assert!(none.contains("no tool has"), "{none}");

    let by_name = |arguments: &Value| called(&gate, ALL, "call_tool", arguments);
    let hello = json!({"name": "fix__say_again", "arguments": {"text": "hello"}});
    assert_eq!(by_name(&hello), (false, "hello".to_owned()));
    let as_text = json!({"name": "fix__say_again", "arguments": "{\"text\": \"hello\"}"});
    assert_eq!(by_name(&as_text), (false, "hello".to_owned()), "some models write a text");
    assert_eq!(called(&gate, ALL, "fix__say_again", &json!({"text": "hi"})), (false, "hi".to_owned()));
    for (wrong, words) in [
        (json!({"name": "fix__effect", "arguments": {"n": 1}}), "denied by the configuration"),
        (json!({"name": "fix__none"}), "Unknown tool: fix__none: find one with `search_tools`"),
        (json!({"name": "fix__say_again", "arguments": [1]}), "must be an object"),
        (json!({"name": "fix__say_again", "arguments": {"text": 1}}), "do not fit"),
        (json!({}), "`name` is missing"),
    ] {
        let (is_error, text) = by_name(&wrong);
        assert!(is_error && text.contains(words), "{wrong}: {text}");
    }
}

#[test]
fn a_search_finds_what_the_token_may_use() {
    let gate = Gate::new(&format!("{TWO}{SEARCH}"));
    let few = "few-token-0123456789";
    assert_eq!(found(&gate, few, "fixture"), ["fix__env", "fix__big"]);
    assert_eq!(found(&gate, few, "time convert zone"), Vec::<String>::new());
    let (is_error, text) = called(&gate, few, "call_tool", &json!({"name": "fix__pid"}));
    assert!(is_error && text.contains("Unknown tool: fix__pid"), "{text}");
    let description = result(&gate, few, "tools/list", json!({}))["tools"][0]["description"].to_string();
    assert!(description.contains("fix (2)") && !description.contains("time"), "{description}");
}

#[test]
fn short_lists_and_single_servers_are_listed() {
    let tools = |gate: &Gate, path: &str| {
        let (headers, message) = modern(1, "tools/list", json!({}));
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
        let list = gate.ask(&format!("POST {path}"), &headers, &message.to_string()).json();
        let tools = list["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let auto = Gate::new(&format!("{TWO}[gateway]\nsearch = \"auto\"\n"));
    assert_eq!(tools(&auto, "/mcp").len(), 14, "far less than 10,000 tokens");
    assert_eq!(tools(&auto, "/mcp/fix")[0], "say_again");
    let gate = Gate::with(TWO, &["--search"]);
    assert_eq!(tools(&gate, "/mcp"), ["search_tools", "call_tool"]);
    assert_eq!(tools(&gate, "/mcp/fix").len(), 11, "one server is passed through");
    let (headers, message) =
        modern(1, "tools/call", json!({"name": "say_again", "arguments": {"text": "hi"}}));
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    let said = gate.ask("POST /mcp/fix", &headers, &message.to_string()).json();
    assert_eq!(said["result"]["content"][0]["text"], "hi", "{said}");
}

#[test]
fn a_list_of_many_tokens_becomes_a_search() {
    let crib = Crib::new(FIXTURE);
    let words = "A long description of what this tool does, with many words. ".repeat(100);
    let lines = (0..20).map(|number| format!("tool{number} {words}")).collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(crib.folder().join("extra"), lines).unwrap();
    let extra = crib.folder().join("extra");
    let config = format!(
        "[servers.fix]\ncommand = FIXTURE\nargs = [\"extra={}\"]\nrequired = true\n[gateway]\nsearch = \"auto\"\n",
        extra.display()
    );
    let gate = Gate::new(&config);
    let list = gate.modern(1, "tools/list", json!({})).json();
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 2);
    let params = json!({"name": "search_tools", "arguments": {"query": "tool7"}});
    let found = gate.modern(2, "tools/call", params).json();
    assert!(found["result"]["content"][0]["text"].as_str().unwrap().contains("fix__tool7"), "{found}");
}
