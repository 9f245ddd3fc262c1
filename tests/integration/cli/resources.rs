//! `toolcrib read` and `toolcrib prompt`, with servers of their own and through the daemon.

use serde_json::Value;

use crate::{
    support::crib::Crib,
    support::program::{code, err, out},
};

const RICH: &str = "[servers.old]\ncommand = FIXTURE\nargs = [\"rich\"]\n\n[servers.new]\ncommand = FIXTURE\n\
                    args = [\"rich\", \"modern\"]\n\n[servers.plain]\ncommand = FIXTURE\n";

#[test]
fn resources_and_prompts_are_listed_and_read() {
    let crib = Crib::new(RICH);
    for daemon in [false, true] {
        if daemon {
            crib.ok(&["up", "-d"]);
        }
        let listed = crib.ok(&["read"]);
        assert!(listed.contains("rich://one") && listed.contains("rich://item/{id}"), "{listed}");
        assert_eq!(crib.ok(&["read", "rich://item/7"]), "rich://item/7");
        let read: Value =
            serde_json::from_str(&crib.ok(&["read", "rich://one", "-s", "new", "--json"])).unwrap();
        assert_eq!(read["contents"][0]["extra"], "contents", "{read}");
        let file = crib.folder().join("one.txt");
        crib.ok(&["read", "rich://one", "-o", file.to_str().unwrap()]);
        assert_eq!(std::fs::read_to_string(file).unwrap(), "rich://one");
        let prompts = crib.ok(&["prompt"]);
        assert!(prompts.contains("old__greet(who?)") && prompts.contains("new__leave()"), "{prompts}");
        assert_eq!(crib.ok(&["prompt", "new__greet", "who=you"]), "user: greet \"you\"");
        assert_eq!(crib.ok(&["prompt", "greet", "who=you", "-s", "old"]), "user: greet \"you\"");
        assert_eq!(crib.ok(&["prompt", "old.greet", "who=you"]), "user: greet \"you\"");
        let missing = crib.run(&["prompt", "plain.greet"]);
        assert_eq!(code(&missing), 6, "{}", err(&missing));
        assert!(err(&missing).contains("server `plain` has no prompt `greet`"), "{}", err(&missing));
        let missing = crib.run(&["prompt", "old__great"]);
        assert!(
            code(&missing) == 6 && err(&missing).contains("did you mean `old__greet`?"),
            "{}",
            err(&missing)
        );
        assert_eq!(crib.ok(&["read", "-s", "plain"]), "", "a server without any");
        let missing = crib.run(&["read", "none://"]);
        assert!(code(&missing) != 0 && err(&missing).contains("no server has a resource `none://`"));
        let missing = crib.run(&["prompt", "-s", "nune"]);
        assert_eq!(code(&missing), 6, "{} {}", out(&missing), err(&missing));
        assert!(err(&crib.run(&["prompt", "old__greet", "who"])).contains("has no `=`"));
    }
    assert_eq!(crib.status()["servers"].as_array().unwrap().len(), 3);
}

/// A table with a mistake is not one without limits: with servers of one's own as through the daemon.
#[test]
fn a_broken_gateway_table_is_not_passed_over() {
    let crib = Crib::new(&format!("{RICH}\n[gateway]\ntoken = \"${{NOT_SET}}\"\nread_only = true\n"));
    for daemon in [false, true] {
        if daemon {
            crib.ok(&["up", "-d"]);
        }
        for arguments in [&["read"][..], &["prompt"], &["connect"]] {
            let refused = crib.run(arguments);
            assert_eq!(code(&refused), 3, "{arguments:?} {daemon}: {}", err(&refused));
            assert!(err(&refused).contains("NOT_SET"), "{arguments:?} {daemon}: {}", err(&refused));
        }
        crib.run(&["down"]);
    }
}
