//! Servers that nobody needs yet are there, for all commands.

use super::{Crib, FIXTURE};
use crate::program::{code, err};

#[test]
fn parked_servers_are_not_waited_for_and_started_if_asked() {
    let crib = Crib::new(
        "[servers.lazy]\ncommand = FIXTURE\nlifecycle = \"lazy\"\n\
         [servers.own]\ncommand = FIXTURE\nscope = \"task\"\n",
    );
    crib.ok(&["up", "-d"]);
    // The first start of a lazy server is how its tools become known.
    crib.ok(&["down"]);
    crib.ok(&["up", "-d"]);
    crib.await_server("lazy", |row| row["state"] == "parked");
    crib.ok(&["wait", "--timeout", "30s"]);
    let started = crib.run(&["start", "lazy"]);
    assert_eq!(code(&started), 0, "{}", err(&started));
    assert!(err(&started).contains("Ready"), "{}", err(&started));
    crib.await_server("lazy", |row| row["state"] == "ready");
    for command in ["start", "restart"] {
        let own = crib.run(&[command, "own"]);
        assert_eq!(code(&own), 0, "{}", err(&own));
        assert!(err(&own).contains("Parked"), "{}", err(&own));
    }
}

#[test]
fn a_wait_in_vain_says_for_whom() {
    let crib = Crib::new(&format!("{FIXTURE}[servers.slow]\ncommand = \"sleep\"\nargs = [\"600\"]\n"));
    crib.ok(&["up", "-d", "--wait", "any"]);
    let waited = crib.run(&["wait", "--timeout", "100ms"]);
    assert_eq!(code(&waited), 7, "{}", err(&waited));
    assert!(err(&waited).contains("within the time given: slow\n"), "{}", err(&waited));
}
