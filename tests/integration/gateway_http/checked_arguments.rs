//! Rules and schemas see the arguments that servers get, whatever their form and size.

use super::*;

#[test]
fn arguments_are_checked_as_they_are_sent() {
    let gate = Gate::new(
        "[servers.fix]\ncommand = FIXTURE\nargs = [\"loose\"]\n\
         result_filter = { deny_args = [{ tool = \"loose\", arg = \"text\", match = \"evil\" }] }\n",
    );
    let session = gate.session("/mcp", "2025-11-25");
    let headers = [&JSON[..], &[("Mcp-Session-Id", &*session)]].concat();
    let ask = |path: &str, headers: &[(&str, &str)], tool: &str, arguments: &str| {
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{arguments}}}}}"#
        );
        gate.ask(&format!("POST {path}"), headers, &message)
    };
    let own = gate.session("/mcp/fix", "2025-11-25");
    let own = [&JSON[..], &[("Mcp-Session-Id", &*own)]].concat();
    for twice in [
        r#"{"text":"evil","text":"good"}"#,
        r#"{"text":"evil","\u0074ext":"good"}"#,
        r#"{"text":"good","more":[{"a":{"b":1,"b":2}}]}"#,
        r#""{\"text\":\"evil\",\"text\":\"good\"}""#,
    ] {
        for (path, headers, tool) in [("/mcp", &headers, "fix__loose"), ("/mcp/fix", &own, "loose")] {
            let refused = ask(path, headers, tool, twice);
            assert_eq!(refused.error(), -32602, "{path} {twice}");
            assert!(refused.json()["error"]["message"].as_str().unwrap().contains("twice"), "{refused:?}");
        }
    }
    for (path, headers, tool) in [("/mcp", &headers, "fix__loose"), ("/mcp/fix", &own, "loose")] {
        let denied = ask(path, headers, tool, r#"{"more":{"text":"good"},"text":"evil"}"#);
        assert!(denied.json().get("error").is_some(), "{denied:?}");
        assert_eq!(ask(path, headers, tool, r#"{"text":"good"}"#).text(), r#"{"text":"good"}"#);
    }
    // What cannot be checked in a moment is checked all the same, without its `null` as with it.
    for null in ["", ",\"none\":null"] {
        let pad = "p".repeat(2_500_000);
        let refused =
            ask("/mcp", &headers, "fix__loose", &format!("{{\"text\":[7],\"pad\":\"{pad}\"{null}}}"));
        assert!(refused.body.contains("do not fit"), "{}", &refused.body[..refused.body.len().min(500)]);
    }
}
