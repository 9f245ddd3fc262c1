//! Messages of a shared server that name no request: they go to one owner while no other one has, or had lately, a request
//! there.

use super::{
    tasks::{Party, SERVERS, question, tool},
    *,
};

/// A log message of the server, which names no request.
fn logged(text: &str) -> Value {
    tool("say", &json!({"method": "notifications/message", "params": {"level": "error", "data": text}}))
}

#[test]
fn a_late_message_about_one_owner_goes_to_nobody_else() {
    let gate = Gate::new(SERVERS);
    let [alice, bob] = ["alice", "bob"].map(|name| Party::new(&gate, name));
    // With one owner it is known whose it is.
    let mut own = bob.post(
        &json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool("ask", &question(None))}),
    );
    assert_eq!(own.head().status, 200);
    bob.agree(&own.until("elicitation/create"));
    assert!(own.until("\"id\":1").contains("accept"));
    let heard = bob.ask(2, "tools/call", &logged("about bob"));
    assert!(heard.body.contains("about bob"), "{heard:?}");

    // A call of the other one has been answered: what the server says now may be about that.
    assert_eq!(alice.ask(1, "tools/call", &tool("meta", &json!({}))).status, 200);
    let heard = bob.ask(3, "tools/call", &logged("about alice"));
    assert!(heard.text() == "said" && !heard.body.contains("about alice"), "{heard:?}");
    let refused = bob.ask(4, "tools/call", &tool("ask", &question(None)));
    assert!(refused.text().contains("several clients"), "{refused:?}");
    let heard = alice.ask(2, "tools/call", &logged("about bob again"));
    assert!(!heard.body.contains("about bob again"), "{heard:?}");

    // At a new connection nobody has asked anything.
    bob.ask(5, "tools/call", &tool("die", &json!({})));
    wait_for("the server", || {
        bob.ask(6, "tools/call", &tool("meta", &json!({}))).answer().get("result").is_some()
    });
    let heard = bob.ask(7, "tools/call", &logged("about bob alone"));
    assert!(heard.body.contains("about bob alone"), "{heard:?}");
}
