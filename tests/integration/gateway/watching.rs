//! Resources that are watched: what a server of the new era has not acknowledged yet, or will not tell of.

use serde_json::json;

use super::{Client, RICH, able};
use crate::support::{crib::Crib, wait_for};

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[test]
fn a_subscription_stands_when_it_is_answered() {
    let crib = Crib::new("[servers.new]\ncommand = FIXTURE\nargs = [\"rich\", \"modern\", \"held\"]\n");
    let uri = "rich://one";
    for modern in [false, true] {
        let mut client = Client::new(&crib, modern, able(), Some("new"));
        let is_watched = |client: &mut Client| client.text("state", &json!({})).contains(uri);
        wait_for("the end of the subscription before", || !is_watched(&mut client));
        let asked = match modern {
            true => client
                .request("subscriptions/listen", &json!({"notifications": {"resourceSubscriptions": [uri]}})),
            false => client.request("resources/subscribe", &json!({"uri": uri})),
        };
        wait_for("the request at the server", || is_watched(&mut client));
        let early = client.heard.iter().find(|it| it["id"] == asked || it["method"] == ACKNOWLEDGED);
        assert!(early.is_none(), "before the server has acknowledged it: {early:?}");
        client.call("acknowledge", &json!({}));
        match modern {
            true => assert_eq!(
                client.notification(ACKNOWLEDGED)["notifications"]["resourceSubscriptions"],
                json!([uri])
            ),
            // It may have come before the answer of the call.
            false if client.heard.iter().any(|it| it["id"] == asked) => {}
            false => assert!(client.wait(asked).get("result").is_some()),
        }
        client.call("touch", &json!({"uri": uri}));
        assert_eq!(client.notification("notifications/resources/updated")["uri"], uri);
    }
}

#[test]
fn what_a_server_does_not_tell_of_is_said() {
    let crib = Crib::new(RICH);
    let mut client = Client::new(&crib, false, able(), Some("new"));
    let refused = client.fail("resources/subscribe", &json!({"uri": "other://one"}));
    assert_eq!(refused["code"], -32602, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("does not tell of changes"), "{refused}");
    client.ask("resources/subscribe", &json!({"uri": "rich://one"}));

    let mut client = Client::new(&crib, true, able(), Some("new"));
    let filter = json!({"resourceSubscriptions": ["other://one", "rich://two", "rich://one"]});
    client.request("subscriptions/listen", &json!({"notifications": filter}));
    let told = client.notification(ACKNOWLEDGED);
    assert_eq!(told["notifications"]["resourceSubscriptions"], json!(["rich://two", "rich://one"]));
    client.call("touch", &json!({"uri": "rich://two"}));
    assert_eq!(client.notification("notifications/resources/updated")["uri"], "rich://two");
}

#[test]
fn a_change_has_the_name_that_its_client_knows() {
    let crib = Crib::new(RICH);
    for modern in [false, true] {
        let mut client = Client::new(&crib, modern, able(), None);
        client.ask("resources/list", &json!({}));
        let name = "toolcrib://new/rich%3A%2F%2Fone";
        match modern {
            true => {
                let filter = json!({"resourceSubscriptions": [name]});
                client.request("subscriptions/listen", &json!({"notifications": filter}));
                client.notification(ACKNOWLEDGED);
            }
            false => drop(client.ask("resources/subscribe", &json!({"uri": name}))),
        }
        client.call("new__touch", &json!({"uri": "rich://one"}));
        assert_eq!(client.notification("notifications/resources/updated")["uri"], name);
    }
}

#[test]
fn a_restarted_server_is_told_what_is_watched() {
    for scope in ["client", "shared"] {
        let config = RICH.replace("[\"rich\"]\n", &format!("[\"rich\"]\nscope = \"{scope}\"\n"));
        let crib = Crib::new(&config);
        let mut client = Client::new(&crib, false, able(), Some("old"));
        client.ask("resources/subscribe", &json!({"uri": "rich://one"}));
        let id = client.request("tools/call", &json!({"name": "die", "arguments": {}}));
        client.wait(id);
        // It may come to the new process before what was watched at the old one.
        client.ask("resources/subscribe", &json!({"uri": "rich://two"}));
        wait_for("what is watched", || {
            let state = client.text("state", &json!({}));
            state.contains("rich://one") && state.contains("rich://two")
        });
        client.call("touch", &json!({"uri": "rich://one"}));
        assert_eq!(client.notification("notifications/resources/updated")["uri"], "rich://one");
    }
}
