//! Everything that a server can do, through an endpoint of its own, between any two eras.

use serde_json::{Value, json};

use super::{Client, RICH, able};
use crate::support::crib::Crib;

/// Runs with each pair of a client (is it of the new era?) and a server.
fn in_all_eras(test: impl Fn(&mut Client, bool, &str)) {
    let crib = Crib::new(RICH);
    for modern in [false, true] {
        for server in ["old", "new"] {
            eprintln!("client of the new era: {modern}, server {server}");
            test(&mut Client::new(&crib, modern, able(), Some(server)), modern, server);
        }
    }
}

#[test]
fn a_server_shows_itself_as_it_is() {
    in_all_eras(|client, modern, _| {
        let hello = match modern {
            true => client.ask("server/discover", &json!({})),
            false => client.ask("initialize", &json!({"protocolVersion": "2025-06-18", "capabilities": {}})),
        };
        assert_eq!(hello["capabilities"]["experimental"], json!({"rich": {"extra": true}}));
        assert_eq!(hello["instructions"], "Ask.");
        let info =
            if modern { &hello["_meta"]["io.modelcontextprotocol/serverInfo"] } else { &hello["serverInfo"] };
        assert_eq!(info["name"], "rich", "{hello}");
        assert_eq!(hello.get("resultType").is_some(), modern);
        let tools = client.ask("tools/list", &json!({}));
        let tool = &tools["tools"][0];
        let expected = json!({
            "name": "meta",
            "title": "META",
            "inputSchema": {"type": "object", "$comment": "kept"},
            "annotations": {"readOnlyHint": true, "title": "T", "extra": 1},
            "icons": [{"src": "data:,", "extra": true}],
            "_meta": {"of": "meta"},
            "extra": [1.5, null],
        });
        assert_eq!(*tool, expected);
        assert_eq!(tools.get("ttlMs").is_some(), modern, "{tools}");
    });
}

#[test]
fn results_pass_without_loss() {
    in_all_eras(|client, modern, server| {
        let structured = client.call("structured", &json!({}));
        assert_eq!(structured["structuredContent"], json!({"a": [1, 2.5]}));
        assert_eq!((&structured["_meta"], &structured["extra"]), (&json!({"x": 1}), &json!("result")));
        assert_eq!(structured.get("resultType").is_some(), modern, "{structured}");
        let first = client.ask("prompts/list", &json!({}));
        assert_eq!((&first["prompts"][0]["title"], &first["nextCursor"]), (&json!("Greet"), &json!("2")));
        let second = client.ask("prompts/list", &json!({"cursor": "2"}));
        assert_eq!(second["prompts"], json!([{"name": "leave", "extra": "prompt"}]));
        assert_eq!(second.get("ttlMs").is_some(), modern);
        let prompt = client.ask("prompts/get", &json!({"name": "greet", "arguments": {"who": "you"}}));
        assert_eq!(prompt["messages"][0]["content"]["text"], "greet \"you\"");
        assert_eq!(client.ask("resources/list", &json!({}))["resources"][0]["size"], 3);
        let templates = client.ask("resources/templates/list", &json!({}));
        assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "rich://item/{id}");
        let read = client.ask("resources/read", &json!({"uri": "rich://item/7"}));
        assert_eq!(read["contents"][0]["extra"], "contents");
        let missing = client.fail("resources/read", &json!({"uri": "other://"}));
        let code = if modern || server == "new" { -32602 } else { -32002 };
        assert_eq!(
            (&missing["code"], &missing["data"]["extra"]),
            (&json!(code), &json!("error")),
            "{missing}"
        );
        let completed = client.ask(
            "completion/complete",
            &json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "y"}}),
        );
        assert_eq!(completed["completion"]["total"], 1);
        assert_eq!(client.ask("rich/custom", &json!({"anything": [1]}))["echo"], json!([1]));
        assert_eq!(client.fail("rich/unknown", &json!({}))["code"], -32601);
        assert_eq!(client.fail("tools/call", &json!({"name": "none"}))["code"], -32602);
        assert_eq!(client.fail("tools/call", &json!({"name": "meta", "arguments": [1]}))["code"], -32602);
    });
}

#[test]
fn servers_hear_of_the_client_as_their_era_wants() {
    in_all_eras(|client, modern, server| {
        let params = json!({"name": "meta", "_meta": {"traceparent": "00-1-1-01", "progressToken": "mine"}});
        let result = client.ask("tools/call", &params);
        let meta: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(meta["traceparent"], "00-1-1-01");
        assert!(meta["progressToken"].is_u64(), "not the client's own: {meta}");
        let info = &meta["io.modelcontextprotocol/clientInfo"];
        let capabilities = &meta["io.modelcontextprotocol/clientCapabilities"];
        match server {
            "new" => assert_eq!((&info["name"], capabilities), (&json!("tester"), &able()), "{modern}"),
            _ => assert!(info.is_null() && capabilities.is_null(), "{meta}"),
        }
    });
}

#[test]
fn progress_and_logs_come_before_the_answer() {
    in_all_eras(|client, modern, _| {
        client.heard.clear();
        client.ask("tools/call", &json!({"name": "progress", "_meta": {"progressToken": "mine"}}));
        let reports: Vec<(Value, Value)> = client
            .heard
            .drain(..)
            .filter(|message| message["method"] == "notifications/progress")
            .map(|message| (message["params"]["progressToken"].clone(), message["params"]["extra"].clone()))
            .collect();
        assert_eq!(reports, [1, 2, 3].map(|step| (json!("mine"), json!(step))));
        let logs = |client: &mut Client, meta: Value| -> Vec<String> {
            client.ask("tools/call", &json!({"name": "log", "arguments": {"text": "hear"}, "_meta": meta}));
            let logged =
                client.heard.drain(..).filter(|message| message["method"] == "notifications/message");
            logged.map(|message| message["params"]["level"].as_str().unwrap().to_owned()).collect()
        };
        if modern {
            assert!(logs(client, json!({})).is_empty(), "it did not ask for any");
            let meta = json!({"io.modelcontextprotocol/logLevel": "error"});
            assert_eq!(logs(client, meta), ["error"]);
        } else {
            client.ask("logging/setLevel", &json!({"level": "warning"}));
            assert_eq!(logs(client, json!({})), ["error"]);
            client.ask("logging/setLevel", &json!({"level": "debug"}));
            assert_eq!(logs(client, json!({})), ["debug", "error"]);
            assert_eq!(client.fail("logging/setLevel", &json!({"level": "loud"}))["code"], -32602);
        }
    });
}

#[test]
fn a_server_asks_the_client_for_input() {
    in_all_eras(|client, modern, server| {
        let question =
            json!({"method": "sampling/createMessage", "params": {"messages": [], "extra": "asked"}});
        let call = json!({"name": "ask", "arguments": question});
        let said = json!({"role": "assistant", "content": {"type": "text", "text": "yes"}, "extra": "said"});
        let answer = if modern {
            let asked = client.ask("tools/call", &call);
            assert_eq!(asked["resultType"], "input_required", "{asked}");
            let (key, request) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
            assert_eq!(request["params"]["extra"], "asked");
            let mut again = call.clone();
            again["requestState"] = asked["requestState"].clone();
            // Without an answer it is asked again; state that was made up, or is of another call, is none.
            if server == "old" {
                let more = client.ask("tools/call", &again);
                assert_eq!(more["resultType"], "input_required");
                let forged = json!({"name": "ask", "arguments": question, "requestState": "forged"});
                assert_eq!(client.fail("tools/call", &forged)["code"], -32602);
                again["requestState"] = more["requestState"].clone();
                let mut other = again.clone();
                other["arguments"]["params"] = json!({});
                assert_eq!(client.fail("tools/call", &other)["code"], -32602);
            }
            again["inputResponses"] = json!({key: said});
            client.ask("tools/call", &again)
        } else {
            let id = client.request("tools/call", &call);
            let asked = client.asked();
            assert_eq!((&asked["method"], &asked["params"]["extra"]), (&question["method"], &json!("asked")));
            client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": said}));
            client.wait(id)["result"].clone()
        };
        let text = answer["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with(&said.to_string()), "{text}");
        if server == "new" {
            assert!(text.ends_with("\"state of the server\""), "{text}");
        }
    });
}

#[test]
fn a_client_is_not_asked_what_it_cannot() {
    let crib = Crib::new(RICH);
    let question = json!({"method": "elicitation/create", "params": {"message": "?"}});
    for modern in [false, true] {
        let mut client = Client::new(&crib, modern, json!({"roots": {}}), Some("old"));
        let told = client.text("ask", &question);
        assert!(told.contains("-32601") && told.contains("does not support"), "{told}");
        // Of the new era the server should have known.
        if !modern {
            let mut client = Client::new(&crib, modern, json!({"roots": {}}), Some("new"));
            let refused = client.fail("tools/call", &json!({"name": "ask", "arguments": question}));
            assert_eq!(refused["code"], -32601, "{refused}");
        }
    }
}

#[test]
fn a_cancelled_call_takes_the_servers_question_along() {
    let stubborn = "[servers.stubborn]\ncommand = FIXTURE\nargs = [\"rich\", \"keeps-questions\"]\n";
    let crib = Crib::new(&format!("{RICH}{stubborn}"));
    for server in ["old", "new", "stubborn"] {
        let mut client = Client::new(&crib, false, able(), Some(server));
        let question = json!({"method": "elicitation/create", "params": {"message": "?"}});
        let call = json!({"name": "ask", "arguments": question});
        // More than a client may have open at once.
        for round in 1..=70 {
            let id = client.request("tools/call", &call);
            let asked = client.asked();
            assert_eq!(asked["method"], "elicitation/create", "{server} {round}: {asked}");
            client.notify("notifications/cancelled", &json!({"requestId": id}));
            let given_up = client.notification("notifications/cancelled");
            assert_eq!(given_up["requestId"], asked["id"], "by the number that the client knows");
            // Too late, and for nobody.
            client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "decline"}}));
        }
        assert_eq!(client.text("meta", &json!({})).chars().next(), Some('{'), "the session goes on");
        // One of the new era waits for nothing while its client is asked.
        let told = if server == "new" { "0" } else { "70" };
        assert_eq!(client.text("cancelled", &json!({})), told, "{server}");
        let id = client.request("tools/call", &call);
        let asked = client.asked();
        client.send(&json!({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}}));
        assert!(client.wait(id)["result"].to_string().contains("accept"));
        assert!(client.unexpected().is_empty(), "{:?}", client.unexpected());
    }
}

#[test]
fn questions_that_are_never_answered_do_not_add_up() {
    let crib = Crib::new(RICH);
    for server in ["old", "new"] {
        let mut client = Client::new(&crib, true, able(), Some(server));
        let question = json!({"method": "elicitation/create", "params": {"message": "?"}});
        let call = json!({"name": "ask", "arguments": question});
        for _ in 0..70 {
            assert_eq!(client.ask("tools/call", &call)["resultType"], "input_required");
        }
        let asked = client.ask("tools/call", &call);
        let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
        let mut again = call;
        again["requestState"] = asked["requestState"].clone();
        again["inputResponses"] = json!({key: {"action": "accept"}});
        assert!(client.ask("tools/call", &again).to_string().contains("accept"));
    }
}

#[test]
fn resources_are_watched_in_all_eras() {
    in_all_eras(|client, modern, server| {
        let uri = "rich://one";
        let listening = match modern {
            true => {
                let filter = json!({"resourceSubscriptions": [uri], "promptsListChanged": true});
                let id = client.request("subscriptions/listen", &json!({"notifications": filter}));
                let told = client.notification("notifications/subscriptions/acknowledged");
                assert_eq!(told["notifications"]["resourceSubscriptions"], json!([uri]));
                assert_eq!(told["_meta"]["io.modelcontextprotocol/subscriptionId"], id);
                Some(id)
            }
            false => {
                client.ask("resources/subscribe", &json!({"uri": uri}));
                None
            }
        };
        client.call("touch", &json!({"uri": uri}));
        let updated = client.notification("notifications/resources/updated");
        assert_eq!(updated["uri"], uri);
        let mark = updated["_meta"]["io.modelcontextprotocol/subscriptionId"].as_u64();
        assert_eq!(mark, listening, "the client's own, if it has one");
        if server == "old" {
            client.call("list-changed", &json!({}));
            client.notification("notifications/prompts/list_changed");
        }
        match listening {
            Some(id) => client.notify("notifications/cancelled", &json!({"requestId": id})),
            None => drop(client.ask("resources/unsubscribe", &json!({"uri": uri}))),
        }
        crate::support::wait_for("the end of it", || !client.text("state", &json!({})).contains(uri));
    });
}

#[test]
fn unknown_revisions_and_broken_messages_are_refused() {
    let crib = Crib::new(RICH);
    let mut client = Client::new(&crib, true, json!({}), Some("old"));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2030-01-01"});
    client.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}));
    let refused = client.message();
    assert_eq!(refused["error"]["code"], -32022);
    assert_eq!(refused["error"]["data"]["supported"][0], "2026-07-28");
    client.send(&json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}));
    assert_eq!(client.message()["error"]["code"], -32600, "`initialize` comes first");
    client.send(&json!([1]));
    assert_eq!(client.message()["error"]["code"], -32600);
    client.send(&json!("x"));
    assert_eq!(client.message()["error"]["code"], -32600);
    for method in ["ping", "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"] {
        let gone = client.fail(method, &json!({}));
        assert_eq!(gone["code"], -32601, "{method} of the new era: {gone}");
    }
    // Who has not said of which revision it is may ask whether somebody is there.
    client.send(&json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}));
    assert_eq!(client.message()["result"], json!({}));
}

#[test]
fn only_what_reads_is_asked_again_of_a_lost_server() {
    let crib = Crib::new(&RICH.replace("args", "restart = { max = 20, backoff = \"10ms..50ms\" }\nargs"));
    for (modern, server) in [(false, "old"), (true, "new")] {
        let mut client = Client::new(&crib, modern, able(), Some(server));
        for (method, times) in
            [("rich/custom", 1), ("tasks/cancel", 1), ("tasks/update", 1), ("prompts/get", 2)]
        {
            let file = crib.folder().join(format!("{server} {}", method.replace('/', " ")));
            let lost = client.fail(method, &json!({"effect": file, "taskId": "t", "name": "greet"}));
            let effects = std::fs::read_to_string(&file).unwrap();
            assert_eq!(effects.lines().count(), times, "{method}: {effects}");
            let message = lost["message"].as_str().unwrap();
            assert!(message.contains("outcome unknown, it was sent"), "{method}: {message}");
        }
    }
}
