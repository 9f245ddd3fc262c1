//! Logins by the command line: who gets in, who renews, and that no token, code or secret is in any output or file but
//! that of the login.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Output, Stdio},
};

use serde_json::{Value, json};

use crate::support::{
    auth_server::{AuthServer, Behavior},
    crib::Crib,
    login::log_in,
    program::{SECRET, code, err, out},
};

fn crib(server: &AuthServer) -> Crib {
    Crib::new(&format!("[servers.guarded]\nurl = \"{}\"\n", server.url()))
}

fn login_files(crib: &Crib) -> Vec<std::path::PathBuf> {
    let folder = crib.folder().join("state/toolcrib/logins");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|ending| ending == "json")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_logs_in_and_out() {
    let server = AuthServer::start(Behavior { scope: "read", ..Behavior::default() }).await;
    let crib = crib(&server);
    let refused = |output: Output| {
        assert_eq!(code(&output), 4, "{}", err(&output));
        assert!(err(&output).contains("log in with `toolcrib login guarded`"), "{}", err(&output));
    };
    refused(crib.run(&["call", "guarded.who"]));
    let error: Value =
        serde_json::from_str(err(&crib.run(&["--json", "call", "guarded.who"])).trim()).unwrap();
    assert_eq!(error["error"]["code"], "login_required");

    let (login, _) = log_in(&crib, &[]).await;
    assert_eq!((&login["state"], &login["scopes"]), (&json!("logged_in"), &json!(["read"])));
    let files = login_files(&crib);
    assert_eq!(files.len(), 1);
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);
    let called = crib.run(&["call", "guarded.who"]);
    assert_eq!(out(&called), "called with a token\n", "{}", err(&called));
    assert!(out(&crib.run(&["login"])).contains("logged in at http://127.0.0.1:"));
    assert!(out(&crib.run(&["doctor"])).contains("logged in at"));
    // Again, with other scopes; the client registers once.
    let (login, _) = log_in(&crib, &["--scope", "read", "--scope", "write"]).await;
    assert_eq!(login["scopes"], json!(["read", "write"]));
    assert_eq!(server.records().count("POST /as/register"), 1, "the port of the first login was used again");

    let left = crib.run(&["--json", "logout", "guarded"]);
    let left: Value = serde_json::from_str(&out(&left)).unwrap();
    assert_eq!((&left["was_logged_in"], &left["revoked"]), (&json!(true), &json!(true)));
    assert!(login_files(&crib).is_empty());
    refused(crib.run(&["call", "guarded.who"]));
    for (words, expected, exit) in [
        (&["login", "nobody"][..], "no server is named `nobody`", 6),
        (&["logout", "nobody"], "no server is named `nobody`", 6),
        (&["login", "--no-browser"], "required", 2),
    ] {
        let output = crib.run(words);
        assert!(err(&output).contains(expected) && code(&output) == exit, "{words:?}: {}", err(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_says_that_a_login_is_missing_and_takes_it() {
    let server = AuthServer::start(Behavior { refreshes: false, ..Behavior::default() }).await;
    let crib = crib(&server);
    assert_eq!(code(&crib.run(&["up", "-d"])), 4, "nothing is ready");
    let ps = out(&crib.run(&["ps", "--wide"]));
    assert!(ps.contains("asks for authorization") && ps.contains("toolcrib login guarded"), "{ps}");
    log_in(&crib, &[]).await;
    crib.ok(&["restart", "guarded"]);
    assert_eq!(out(&crib.run(&["call", "guarded.who", "--daemon"])), "called with a token\n");
    // The token ends while the daemon has it, and nothing renews it.
    server.expire();
    let output = crib.run(&["call", "guarded.who", "--daemon"]);
    assert!(code(&output) == 4 && err(&output).contains("the login has expired"), "{}", err(&output));
    log_in(&crib, &[]).await;
    assert_eq!(out(&crib.run(&["call", "guarded.who", "--daemon"])), "called with a token\n");
    crib.ok(&["down"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_processes_renew_a_token_once() {
    let server = AuthServer::start(Behavior::default()).await;
    let crib = crib(&server);
    log_in(&crib, &[]).await;
    for round in 1..=3 {
        server.expire();
        let calls: Vec<_> = (0..6)
            .map(|_| {
                let mut command = crib.command(&["call", "guarded.who"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for call in calls {
            let output = call.wait_with_output().unwrap();
            assert_eq!(out(&output), "called with a token\n", "{}", err(&output));
        }
        let counted = {
            let records = server.records();
            (records.count("POST /as/token"), records.reused)
        };
        assert_eq!(counted, (1 + round, 0));
    }
}

fn search(whose: &str, text: &str) {
    let line = text.lines().find(|line| line.contains(SECRET));
    assert!(line.is_none(), "{whose}: {}", line.unwrap_or_default());
}

fn search_files(folder: &Path, logins: &Path) -> usize {
    let mut searched = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path != logins {
            searched += search_files(&path, logins);
        } else if path.is_file() {
            searched += 1;
            search(&path.display().to_string(), &String::from_utf8_lossy(&fs::read(&path).unwrap()));
        }
    }
    searched
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_login_is_shown() {
    let behavior =
        Behavior { secret: SECRET, leaks: true, auth_method: "client_secret_post", ..Behavior::default() };
    let server = AuthServer::start(behavior).await;
    let crib = crib(&server);
    let logins = crib.folder().join("state/toolcrib/logins");
    fs::write(
        crib.folder().join("t.jsonl"),
        r#"{"id":"a","calls":[{"tool":"guarded.who","expect":{"contains":"x"}}]}"#,
    )
    .unwrap();
    let run = |words: &[&str]| {
        for (json, log) in [(false, "trace"), (true, "off")] {
            let words = if json { [&["--json"], words].concat() } else { words.to_vec() };
            let output = crib.command(&words).env("TOOLCRIB_LOG", log).output().unwrap();
            search(&format!("{words:?}"), &out(&output));
            search(&format!("{words:?}"), &err(&output));
        }
    };
    let (document, said) = log_in(&crib, &[]).await;
    search("login", &document.to_string());
    search("login", &said);
    assert!(fs::read_to_string(&login_files(&crib)[0]).unwrap().contains(SECRET), "the file has them");
    let called = crib.run(&["call", "guarded.who"]);
    assert_eq!(out(&called), "called with ****\n", "{}", err(&called));
    let commands: [&[&str]; 9] = [
        &["login"],
        &["call", "guarded.who"],
        &["tools"],
        &["check"],
        &["doctor", "guarded"],
        &["run", "t.jsonl", "--record", "--events", "events.jsonl"],
        &["run", "t.jsonl", "--events", "-"],
        &["ps"],
        &["logs"],
    ];
    crib.ok(&["up", "-d"]);
    for words in commands {
        run(words);
    }
    // Renewed, in the daemon and beside it.
    server.expire();
    run(&["call", "guarded.who"]);
    run(&["call", "guarded.who", "--no-daemon"]);
    // Refused with what was sent, in the words of both servers.
    server.change(|behavior| behavior.refreshes = false);
    for _ in 0..2 {
        server.expire();
        for words in commands {
            run(words);
        }
        run(&["call", "guarded.who", "--no-daemon"]);
    }
    run(&["ps", "--wide"]);
    run(&["down"]);
    run(&["logout", "guarded"]);
    assert!(search_files(crib.folder(), &logins) > 5);
}
