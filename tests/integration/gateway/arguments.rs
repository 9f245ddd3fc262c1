//! Arguments of clients: what a server would accept is not refused before it, and what it gets is what was meant.

use serde_json::json;

use super::{Client, able};
use crate::support::crib::Crib;

/// A tool with this schema, whose server has `settings`; the folder of the file with its schema.
fn odd(settings: &str) -> (tempfile::TempDir, Crib) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("schema.json");
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "x": {"type": "number"}, "yes": {"type": "boolean"}, "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}}, "object": {"type": "object"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }});
    std::fs::write(&file, schema.to_string()).unwrap();
    let crib = Crib::new(&format!(
        "[servers.s]\ncommand = FIXTURE\nargs = [\"odd={}\"]\n{settings}",
        file.display()
    ));
    (folder, crib)
}

#[test]
fn texts_of_clients_are_converted_as_the_server_says() {
    let texts = json!({"n": "5", "x": "1.5", "yes": "true", "text": "5", "list": "[1, \"2\"]", "object": "{\"k\":1}", "maybe": "null"});
    let meant = json!({"n": 5, "x": 1.5, "yes": true, "text": "5", "list": [1, 2], "object": {"k": 1}, "maybe": null});
    for (settings, server, converted) in [
        ("", None, Some(true)),
        ("check_arguments = \"convert\"\n", None, Some(true)),
        ("check_arguments = \"refuse\"\n", None, None),
        ("check_arguments = \"off\"\n", None, Some(false)),
        ("", Some("s"), Some(false)),
    ] {
        let (_folder, crib) = odd(settings);
        for modern in [false, true] {
            let mut client = Client::new(&crib, modern, able(), server);
            let name = if server.is_some() { "odd" } else { "s__odd" };
            let result = client.call(name, &texts);
            let text = result["content"][0]["text"].as_str().unwrap();
            match converted {
                Some(converted) => {
                    let got: serde_json::Value = serde_json::from_str(text).unwrap();
                    assert_eq!(
                        got,
                        if converted { meant.clone() } else { texts.clone() },
                        "{settings} {server:?}"
                    );
                }
                None => assert!(result["isError"] == true && text.contains("`n` must be"), "{result}"),
            }
        }
    }
    // What has no reading is refused, with the reason.
    let (_folder, crib) = odd("");
    let mut client = Client::new(&crib, false, able(), None);
    let result = client.call("s__odd", &json!({"n": "five", "x": "1"}));
    assert!(result.to_string().contains("`n` must be"), "{result}");
}
