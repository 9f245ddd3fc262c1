//! Tests the lockfile: its text, and what counts as a difference.

use std::sync::Arc;

use serde_json::Map;

use super::*;
use crate::{package::Ecosystem, tool::is_unseen};

fn tool(name: &str, description: &str, schema: &str) -> Tool {
    Tool::new(name, description, serde_json::from_str(schema).unwrap())
}

fn lock(tools: &[Tool]) -> LockFile {
    let mut lock = LockFile::default();
    let software = ServerSoftware { name: "a \"quoted\" \u{202e}name".into(), version: "1".into() };
    lock.put(&ServerName::new("one.x").unwrap(), Some(&software), None, tools);
    lock
}

/// The same tools from another version of a package, or from none that is known.
fn packed(version: Option<&str>) -> LockFile {
    let package = version.map(|version| Package::new(Ecosystem::Npm, "@a/\"b\"", version));
    let mut lock = LockFile::default();
    lock.put(&ServerName::new("one.x").unwrap(), None, package.as_ref(), &[tool("a", "", SCHEMA_A)]);
    lock
}

const SCHEMA_A: &str = r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}}}"#;

#[test]
fn a_lockfile_is_written_back_unchanged() {
    let locked = lock(&[tool("b", "", SCHEMA_A), tool("a", "", SCHEMA_A)]);
    let text = locked.to_string();
    let back = LockFile::parse(&text).unwrap();
    assert_eq!((back.to_string(), back), (text.clone(), locked));
    assert_eq!(text.lines().filter(|line| line.contains("sha256")).count(), 2, "{text}");
    assert!(LockFile::parse(&text.replace("schema = 4", "schema = 5")).is_err());
    assert!(LockFile::parse(&text.replace("sha256", "sha255")).is_err());
}

#[test]
fn texts_are_read_back_and_escape_invisible_characters() {
    let words = [
        "one line",
        "two\nlines",
        "two\r\nlines\n",
        "'''\nquoted \"\"\" \\n '",
        "\u{1b}[2J\u{202e}\nx\u{e0041}\u{7f}\u{0}",
        "",
    ];
    let tools: Vec<Tool> = words
        .iter()
        .zip('a'..)
        .map(|(words, name)| tool(&format!("{name}\u{1b}"), words, SCHEMA_A))
        .collect();
    let locked = lock(&tools);
    let text = locked.to_string();
    assert!(!text.contains(is_unseen), "{text:?}");
    let back = LockFile::parse(&text).unwrap();
    assert_eq!((back.to_string(), &back), (text, &locked));
    let changes = LockFile::default().diff(&back);
    let told: Vec<&str> =
        changes[0].texts.iter().map(|text| text.now.as_ref().unwrap().description.as_str()).collect();
    assert_eq!(told, words);
    let schemas = &changes[0].texts[0].now.as_ref().unwrap().schemas;
    assert!(schemas.contains("  \"input_schema\": {\n"), "{schemas}");
}

#[test]
fn a_lockfile_without_texts_is_valid() {
    let tools = [tool("a", "words", SCHEMA_A)];
    let (locked, hash) = (lock(&tools), hash_of(&tools[0]));
    let old = format!(
        "schema = 1\n[servers.\"one.x\"]\nsoftware = {{ name = 'a \"quoted\" \u{202e}name', version = \"1\" }}\ntools = [{{ name = \"a\", sha256 = \"{hash}\" }}]\n"
    );
    let old = LockFile::parse(&old).unwrap();
    assert!(old.diff(&locked).is_empty());
    assert!(old.lock_violations(&ServerName::new("one.x").unwrap(), &[&tools[0]]).is_empty());
    let changed = old.diff(&lock(&[tool("a", "other", SCHEMA_A)]));
    let text = &changed[0].texts[0];
    assert!(text.before.is_none() && text.now.as_ref().unwrap().description == "other", "{text:?}");
    let long = lock(&[tool("a", &"x".repeat(MAX_TEXT), SCHEMA_A)]);
    assert!(old.diff(&long)[0].texts[0].now.is_none() && long.to_string().len() < 1000);
}

#[test]
fn only_the_order_of_keys_is_ignored() {
    let before = tool("a", "words", SCHEMA_A);
    let reordered = r#"{"properties": {"a": {"enum": [1, 2]}}, "type": "object"}"#;
    assert_eq!(hash_of(&before), hash_of(&tool("a", "words", reordered)));
    let mut hinted = before.clone();
    hinted.annotations.read_only_hint = Some(true);
    let mut result = before.clone();
    result.output_schema = Some(Arc::new(Map::new()));
    for other in
        [tool("a", "Words", SCHEMA_A), tool("a", "words", &SCHEMA_A.replace("1, 2", "2, 1")), hinted, result]
    {
        assert_ne!(hash_of(&before), hash_of(&other), "{other:?}");
    }
}

#[test]
fn keys_keep_the_locked_order_or_are_sorted() {
    let schema = r#"{"type":"object","properties":{"z":{"y":1,"x":[{"b":1,"a":2},3]},"a":{}}}"#;
    let turned = r#"{"properties":{"a":{},"z":{"x":[{"a":2,"b":1},3],"y":1}},"type":"object"}"#;
    let name = ServerName::new("one.x").unwrap();
    let with = |description: &str, schema: &str| {
        let mut tool = tool("a", description, schema);
        tool.output_schema = Some(tool.input_schema.clone());
        tool
    };
    let shown = |lock: &LockFile, schema: &str| {
        let tools = lock.in_reviewed_order(&name, &[with("", schema)]);
        [&tools[0].input_schema, tools[0].output_schema.as_ref().unwrap()]
            .map(|schema| serde_json::to_string(&**schema).unwrap())
    };
    let mut lock = lock(&[with("", schema)]);
    assert_eq!(shown(&lock, turned), [schema, schema]);
    let before = lock.servers["one.x"].plain.texts.clone();
    lock.put(&name, None, None, &[with("", turned)]);
    assert_eq!(lock.servers["one.x"].plain.texts, before, "nobody reviews what has not changed otherwise");
    lock.put(&name, None, None, &[with("other words", turned)]);
    assert_eq!(shown(&lock, schema), [turned, turned], "all of the tool was reviewed");
    lock.servers.get_mut("one.x").unwrap().plain.texts.clear();
    assert_eq!(shown(&lock, schema), [turned, turned], "sorted");
    assert_eq!(shown(&LockFile::default(), schema), [turned, turned]);
}

#[test]
fn tools_are_shown_in_the_order_of_the_lockfile() {
    let [b, a, c] = ["b", "a", "c"].map(|name| tool(name, "", SCHEMA_A));
    let locked = lock(&[b.clone(), a.clone()]);
    let shown = locked.in_reviewed_order(&ServerName::new("one.x").unwrap(), &[c, a, b]);
    assert_eq!(shown.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["b", "a", "c"]);
}

#[test]
fn of_two_tools_with_one_name_the_first_is_locked() {
    let twins = [tool("a", "one", SCHEMA_A), tool("a", "two", SCHEMA_A)];
    let locked = lock(&twins);
    assert_eq!(locked, lock(&twins[..1]));
}

#[test]
fn lock_differences_are_named() {
    let before = lock(&[tool("a", "", SCHEMA_A), tool("b", "", SCHEMA_A), tool("c", "", SCHEMA_A)]);
    assert!(before.diff(&before.clone()).is_empty());
    let after = lock(&[tool("c", "", SCHEMA_A), tool("b", "new", SCHEMA_A), tool("d", "", SCHEMA_A)]);
    let changes = before.diff(&after);
    assert_eq!(
        (changes[0].kind, changes[0].tools.signed().join(" ")),
        (LockChangeKind::Changed, "+d -a ~b".into())
    );
    let turned = lock(&[tool("b", "", SCHEMA_A), tool("a", "", SCHEMA_A), tool("c", "", SCHEMA_A)]);
    assert_eq!(before.diff(&turned)[0].kind, LockChangeKind::Reordered);
    assert_eq!(before.diff(&LockFile::default())[0].kind, LockChangeKind::Gone);
    assert_eq!(LockFile::default().diff(&before)[0].kind, LockChangeKind::New);
}

#[test]
fn new_and_changed_tools_are_rejected() {
    let locked = lock(&[tool("a", "", SCHEMA_A), tool("b", "", SCHEMA_A)]);
    let name = ServerName::new("one.x").unwrap();
    let (a, other_a, new) = (tool("a", "", SCHEMA_A), tool("a", "x", SCHEMA_A), tool("n", "", SCHEMA_A));
    assert!(locked.lock_violations(&name, &[&a]).is_empty(), "one tool less harms nobody");
    assert_eq!(locked.lock_violations(&name, &[&a, &new]), ["the tool `n` is new"]);
    assert_eq!(locked.lock_violations(&name, &[&a, &other_a]).len(), 1, "nor by a second tool of the name");
    assert_eq!(locked.lock_violations(&ServerName::new("two").unwrap(), &[]).len(), 1);
}

#[test]
fn package_versions_are_locked_and_compared() {
    let (old, one, two) = (packed(None), packed(Some("1.0")), packed(Some("2.0")));
    assert_eq!(LockFile::parse(&one.to_string()).unwrap(), one);
    assert!(LockFile::parse(&one.to_string().replace("npm", "nmp")).is_err());
    let kinds = |before: &LockFile, after| {
        before.diff(after).iter().map(|change| (change.kind, change.package.clone())).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&one, &two), [(LockChangeKind::Package, package_of(&two).cloned())]);
    assert_eq!(kinds(&one, &one), []);
    assert_eq!(kinds(&old, &one), [], "an older lockfile says nothing about it");
    assert_eq!(kinds(&one, &old), [(LockChangeKind::Package, None)], "it is known no more");
    let mut both = two.clone();
    both.put(&ServerName::new("one.x").unwrap(), None, package_of(&two), &[tool("b", "", SCHEMA_A)]);
    assert_eq!(one.diff(&both)[0].kind, LockChangeKind::Changed, "tools weigh more");
    assert_eq!(one.diff(&both)[0].package.as_ref(), package_of(&two));
}

fn package_of(lock: &LockFile) -> Option<&Package> {
    lock.package(&ServerName::new("one.x").unwrap())
}

#[test]
fn what_clients_see_that_can_be_asked_is_locked_besides() {
    let name = ServerName::new("one.x").unwrap();
    let [a, b, other_b, c] =
        [("a", ""), ("b", ""), ("b", "asks first"), ("c", "")].map(|(name, text)| tool(name, text, SCHEMA_A));
    let plain = lock(&[a.clone(), b.clone()]);
    let mut both = plain.clone();
    both.put_asked(&name, &[a.clone(), b.clone()]);
    assert_eq!(both, plain, "most servers list the same to everybody");
    both.put_asked(&name, &[c.clone(), a.clone(), other_b.clone()]);
    let text = both.to_string();
    assert_eq!(LockFile::parse(&text).unwrap(), both, "{text}");
    assert_eq!(text.matches("name = \"a\"").count(), 1, "{text}");
    for tools in [[&a, &b], [&a, &other_b], [&c, &b]] {
        assert_eq!(both.lock_violations(&name, &tools), [""; 0]);
    }
    assert_eq!(both.lock_violations(&name, &[&tool("b", "new words", SCHEMA_A)]).len(), 1);
    let changes = &plain.diff(&both)[0];
    assert_eq!((changes.tools.signed().join(" "), changes.asked.join(" ")), ("+c ~b".into(), "c".into()));
    let words = |text: &Option<ToolText>| text.as_ref().map(|text| text.description.clone());
    let b_text = changes.texts.iter().find(|text| text.name == "b").unwrap();
    assert_eq!(words(&b_text.now), Some("asks first".into()));
    let mut again = both.clone();
    again.put(&name, plain.servers["one.x"].software.as_ref(), None, &[a.clone(), b]);
    assert!(both.diff(&again).is_empty(), "it stays until it is put");
    let shown = again.in_reviewed_order(&name, &[c, a, other_b]);
    assert_eq!(shown.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
}
