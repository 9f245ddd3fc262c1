//! Symbolic links in the folder of a run, as one that comes from elsewhere may have them: nothing is written through them.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::{Path, PathBuf},
};

use crate::support::program::{Bench, CALC_AND_SCRIPT, code, err};

const TASKS: &str =
    "{\"id\": \"a\", \"input\": \"q\", \"target\": \"4\"}\n{\"id\": \"b\", \"input\": \"q\"}\n";

/// A run in which everything has ended, and a folder outside of it with a file.
fn bench() -> (Bench, PathBuf, PathBuf) {
    let bench = Bench::new(CALC_AND_SCRIPT);
    bench.file("model.toml", "[[steps]]\nsay = \"4\"\n");
    bench.file("tasks.jsonl", TASKS);
    let done = bench.run(&["run", "tasks.jsonl"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    let run = fs::read_dir(bench.0.path().join("runs")).unwrap().next().unwrap().unwrap().path();
    let outside = bench.0.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "theirs").unwrap();
    (bench, run, outside)
}

/// Puts a link in place of what is there.
fn plant(target: &Path, place: &Path) {
    let _ = fs::remove_file(place);
    let _ = fs::remove_dir_all(place);
    symlink(target, place).unwrap();
}

fn assert_untouched(outside: &Path, what: &str) {
    assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "theirs", "{what}");
    assert_eq!(fs::read_dir(outside).unwrap().count(), 1, "{what}");
}

#[test]
fn reports_and_exports_write_through_no_link() {
    let (bench, run, outside) = bench();
    let id = run.file_name().unwrap().to_str().unwrap().to_owned();
    let file = outside.join("file");
    for (place, target) in [("report.html", &file), ("report.html.new", &file), ("results.csv", &file)] {
        plant(target, &run.join(place));
    }
    for words in [&["report", &id][..], &["export", "csv", &id]] {
        let done = bench.run(words);
        assert_eq!(code(&done), 0, "{words:?}: {}", err(&done));
    }
    for name in ["report.html", "results.csv"] {
        assert!(fs::symlink_metadata(run.join(name)).unwrap().is_file(), "{name}");
    }
    assert_untouched(&outside, "report and csv");
    let empty = bench.0.path().join("empty");
    fs::create_dir(&empty).unwrap();
    for (format, place) in [("atif", "atif"), ("mirothinker", "mirothinker")] {
        plant(&empty, &run.join(place));
        let done = bench.run(&["export", format, &id]);
        assert_ne!(code(&done), 0, "{format}");
        assert!(err(&done).contains("symbolic link"), "{}", err(&done));
        assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "{format}");
    }
    for (format, place) in
        [("inspect", "inspect.eval"), ("perfetto", "perfetto.json"), ("openai", "openai.jsonl")]
    {
        for draft in [place.to_owned(), format!("{place}.new"), format!("{place}.new.summaries")] {
            plant(&file, &run.join(draft));
        }
        let done = bench.run(&["export", format, &id]);
        assert_eq!(code(&done), 0, "{format}: {}", err(&done));
        assert_untouched(&outside, format);
    }
}

#[test]
fn a_continued_run_writes_through_no_link() {
    for place in [
        "events.jsonl",
        "results.jsonl.new",
        "run.json.new",
        "journal.db",
        "journal.lock",
        "tasks",
        "tasks/a",
        "tasks/b/1",
        "tasks/b/1/messages.json",
    ] {
        let (bench, run, outside) = bench();
        let id = run.file_name().unwrap().to_str().unwrap().to_owned();
        // Without its results every task is carried out again.
        fs::write(run.join("results.jsonl"), "").unwrap();
        let target = if place.contains('.') { outside.join("file") } else { outside.clone() };
        plant(&target, &run.join(place));
        let done = bench.run(&["run", "tasks.jsonl", "--run", &id]);
        assert_untouched(&outside, place);
        // What can be replaced is; else the error says what is in the way.
        assert!(code(&done) == 0 || err(&done).contains("symbolic link"), "{place}: {}", err(&done));
    }
}

#[test]
fn a_journal_with_code_of_others_is_refused() {
    let (bench, run, _) = bench();
    let id = run.file_name().unwrap().to_str().unwrap().to_owned();
    let journal = rusqlite::Connection::open(run.join("journal.db")).unwrap();
    let endless = "create trigger t after insert on journal begin \
                   select count(*) from (with recursive n(i) as (select 1 union all select i + 1 from n) select i from n); end";
    journal.execute_batch(endless).unwrap();
    drop(journal);
    let done = bench.run(&["run", "tasks.jsonl", "--run", &id]);
    assert_ne!(code(&done), 0);
    assert!(err(&done).contains("it has a trigger `t` that this program has not made"), "{}", err(&done));
}

#[test]
fn a_run_that_others_can_write_to_is_not_continued() {
    let (bench, run, _) = bench();
    let id = run.file_name().unwrap().to_str().unwrap().to_owned();
    // As if it had been interrupted.
    let text = fs::read_to_string(run.join("run.json")).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    manifest["end"] = serde_json::Value::Null;
    fs::write(run.join("run.json"), manifest.to_string()).unwrap();
    let set = |place: &Path, mode| fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
    let refused = |why: &str| {
        for words in [&["run", "tasks.jsonl"][..], &["run", "tasks.jsonl", "--run", &id]] {
            let done = bench.run(words);
            assert_eq!(code(&done), 2, "{words:?}: {}", err(&done));
            assert!(err(&done).contains(why) && err(&done).contains("--fresh"), "{}", err(&done));
        }
    };
    let journal = run.join("journal.db");
    for (place, mode, good) in [(&journal, 0o666, 0o600), (&journal, 0o620, 0o600), (&run, 0o777, 0o700)] {
        set(place, mode);
        refused("other users may write to ");
        set(place, good);
    }
    // Only root can give files to others.
    if rustix::process::geteuid().is_root() {
        for place in [&run, &journal, &run.join("run.json"), &bench.0.path().join("runs")] {
            chown(place, Some(12345), None).unwrap();
            refused("belongs to user 12345");
            chown(place, Some(0), None).unwrap();
        }
    }
    let done = bench.run(&["run", "tasks.jsonl"]);
    assert!(code(&done) == 0 && err(&done).contains("Resuming"), "{}", err(&done));
}

/// Makes a run look as if it had been interrupted after its first task; returns its id.
fn interrupted(run: &Path, change: impl FnOnce(&mut serde_json::Value)) -> String {
    let file = run.join("run.json");
    let mut about: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    about["end"] = serde_json::Value::Null;
    about["totals"] = serde_json::Value::Null;
    change(&mut about);
    fs::write(file, about.to_string()).unwrap();
    run.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_run_that_came_with_a_folder_is_not_continued() {
    let (bench, run, _) = bench();
    let id = interrupted(&run, |_| {});
    // Another key: that of another user, or machine.
    fs::remove_file(bench.0.path().join("state/toolcrib/trust/key")).unwrap();
    let told = err(&bench.run(&["run", "tasks.jsonl"]));
    assert!(told.contains("no mark of yours on this machine") && !told.contains("Resuming"), "{told}");
    assert!(told.contains(&format!("--run {id} continues it")), "{told}");
    for words in [&["run", "tasks.jsonl", "--run", &id][..], &["run", "tasks.jsonl"]] {
        interrupted(&run, |_| {});
        let told = err(&bench.run(words));
        assert!(told.contains(&format!("Resuming run {id}")), "{words:?}: {told}");
    }
}

#[test]
fn a_run_has_the_id_of_its_folder() {
    let (bench, run, _) = bench();
    let id = interrupted(&run, |about| about["run"] = "../../x\r\nWARNING fake".into());
    let done = bench.run(&["run", "tasks.jsonl"]);
    assert_eq!(code(&done), 0, "{}", err(&done));
    assert!(!err(&done).contains("Resuming") && !err(&done).contains("WARNING"), "{}", err(&done));
    let shown = bench.run(&["runs", "--json"]);
    let shown = crate::support::program::out(&shown);
    assert!(
        shown.contains(&format!("\"run\":\"{id}\"")) || shown.contains(&format!("\"run\": \"{id}\"")),
        "{shown}"
    );
    assert!(!shown.contains("WARNING"), "{shown}");
}

#[test]
fn a_folder_of_runs_that_others_can_write_to_is_told() {
    let (bench, run, _) = bench();
    let runs = run.parent().unwrap();
    for (mode, is_told) in [(0o755, false), (0o777, true), (0o1777, false)] {
        fs::set_permissions(runs, fs::Permissions::from_mode(mode)).unwrap();
        let told = err(&bench.run(&["run", "tasks.jsonl", "--fresh"]));
        assert_eq!(told.contains("put something else in the place of a run"), is_told, "{mode:o}: {told}");
    }
}
