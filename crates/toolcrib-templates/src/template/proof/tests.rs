//! Proofs: what becomes of them, and what is made of their files.

use serde_json::json;

use super::*;
use crate::{
    config::{Secrets, StdioConfig},
    template::python::{Entry, PythonStart},
};

fn tool(name: &str, description: &str, schema: &serde_json::Value) -> ToolPrint {
    ToolPrint::new(name, Some(description), schema)
}

fn offered(names: &[&str]) -> Fingerprint {
    offered_by("2025-06-18", "1.0", names)
}

fn offered_by(revision: &str, version: &str, names: &[&str]) -> Fingerprint {
    let tools = names.iter().map(|name| tool(name, "does it", &json!({ "type": "object" })));
    Fingerprint::new(revision, ("server", version), tools.collect())
}

fn identity(key: &str) -> Identity {
    Identity::made(key)
}

#[test]
fn differences_are_said_in_words() {
    let before = offered(&["a", "b", "c"]);
    let stored: Fingerprint = serde_json::from_value(serde_json::to_value(&before).unwrap()).unwrap();
    assert_eq!(stored.difference(&before), None);
    let object = json!({ "type": "object" });
    let of = |last: ToolPrint| {
        let tools = vec![tool("a", "does it", &object), tool("b", "does it", &object), last];
        Fingerprint::new("2025-06-18", ("server", "1.0"), tools)
    };
    assert_eq!(stored.difference(&of(tool("c", "does it", &object))), None);
    for (now, words) in [
        (
            offered_by("2025-06-18", "1.1", &["a", "b", "c"]),
            "it calls itself `server 1.1`, and something else before",
        ),
        (offered(&["a", "b"]), "it lists 2 tools in place of 3"),
        (offered(&[]), "it lists 0 tools in place of 3"),
        (offered(&["a", "b", "x"]), "it lists the tool `x`, which it did not before"),
        (offered(&["a", "c", "b"]), "it lists its tools in another order, `c` too early or too late"),
        (of(tool("c", "does more", &object)), "its tool `c` has another description"),
        (of(ToolPrint::new("c", None, &object)), "its tool `c` has another description"),
        (of(tool("c", "does it", &json!({}))), "its tool `c` has another schema"),
    ] {
        let difference = stored.difference(&now);
        assert_eq!(difference.as_ref().map(Difference::as_str), Some(words));
    }
    // A client may choose the revision.
    assert_eq!(before.difference(&offered_by("2026-07-28", "", &["a", "b", "c"])), None);
    let words = "it lists the tool `x`, which it did not before";
    assert_eq!(before.difference(&offered_by("2026-07-28", "", &["a", "b", "x"])).unwrap().as_str(), words);
    let many: Vec<String> = (0..3000).map(|number| number.to_string()).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).collect();
    let (one, mut other) = (offered(&names), names.clone());
    assert!(serde_json::to_string(&one).unwrap().len() < 1000);
    other.swap(1, 2);
    assert_eq!(one.difference(&offered(&names)), None);
    assert_eq!(one.difference(&offered(&other)).unwrap().as_str(), "its tools are not the same");
}

#[test]
fn a_fork_is_proven_by_an_ordinary_start() {
    let (same, other) = (offered(&["a"]), offered(&["a", "b"]));
    let unknown = Proof::Unknown;
    assert!(!unknown.permits() && unknown.after_fork(&same) == (None, None));
    let baseline = unknown.after_ordinary(same.clone()).0.unwrap();
    assert!(baseline.permits());
    assert_eq!(baseline.after_ordinary(same.clone()), (None, Verdict::Nothing));
    assert_eq!(baseline.after_ordinary(other.clone()).0, Some(Proof::Baseline(other.clone())));
    let (proven, difference) = baseline.after_fork(&same);
    assert_eq!((proven.as_ref(), difference), (Some(&Proof::Proven(same.clone())), None));
    let proven = proven.unwrap();
    assert!(proven.permits());
    assert_eq!(proven.after_fork(&same), (None, None));
    assert!(matches!(Proof::off(&"ä".repeat(1000)), Proof::Off { reason, .. } if reason.len() == MAX_REASON));
}

#[test]
fn an_ordinary_start_decides_about_a_fork_that_differs() {
    let (same, other, third) = (offered(&["a"]), offered(&["a", "b"]), offered(&["c"]));
    let words = "it lists 2 tools in place of 1";
    for (before, proven) in [(Proof::Baseline(same.clone()), false), (Proof::Proven(same.clone()), true)] {
        let (doubtful, difference) = before.after_fork(&other);
        let doubtful = doubtful.unwrap();
        assert_eq!(difference.unwrap().as_str(), words);
        assert!(!doubtful.permits() && doubtful.after_fork(&same) == (None, None));
        // Only the fork was another one.
        let (off, verdict) = doubtful.after_ordinary(same.clone());
        let off = off.unwrap();
        assert_eq!(verdict, Verdict::Off(words.to_owned()));
        assert!(matches!(&off, Proof::Off { reason, .. } if reason == words), "{off:?}");
        assert_eq!(off.after_ordinary(other.clone()), (None, Verdict::Nothing), "it stays off");
        // Another one each time.
        let (varies, verdict) = doubtful.after_ordinary(third.clone());
        let varies = varies.unwrap();
        assert_eq!(verdict, Verdict::Varies(words.to_owned()));
        assert!(!varies.permits() && varies.after_ordinary(same.clone()) == (None, Verdict::Nothing));
        // As the fork: after forks that had not differed, it has changed in between.
        let (changed, verdict) = doubtful.after_ordinary(other.clone());
        match proven {
            true => assert_eq!((changed, verdict), (Some(Proof::Baseline(other.clone())), Verdict::Nothing)),
            false => assert!(matches!(changed, Some(Proof::Varies { .. }))),
        }
    }
    let long_ago = Proof::Varies { reason: words.to_owned(), when: 1 };
    assert_eq!(long_ago.after_ordinary(same.clone()).0, Some(Proof::Baseline(same)));
}

#[test]
fn a_fork_that_ends_early_is_off_unless_others_end_too() {
    let offers = offered(&["a"]);
    for before in [Proof::Baseline(offers.clone()), Proof::Proven(offers.clone())] {
        assert_eq!(before.after_early_end(false, "exit 3", "exit 3 soon"), (None, Verdict::Nothing));
        let (off, verdict) = before.after_early_end(true, "exit 3", "exit 3 soon");
        let off = off.unwrap();
        assert_eq!(verdict, Verdict::Off("exit 3 soon".to_owned()));
        let stored: Proof = serde_json::from_value(serde_json::to_value(&off).unwrap()).unwrap();
        assert!(
            !stored.permits() && stored.after_early_end(false, "exit 4", "x") == (None, Verdict::Nothing)
        );
        assert_eq!(stored.after_early_end(true, "exit 3", "x"), (None, Verdict::Nothing));
        let fragile = off.after_early_end(false, "exit 3", "x").0.unwrap();
        assert!(
            fragile.permits() && fragile.after_early_end(true, "exit 3", "x") == (None, Verdict::Nothing)
        );
    }
    let text = r#"{"off":{"reason":"x","when":1}}"#;
    let earlier: Proof = serde_json::from_str(text).unwrap();
    assert_eq!(
        earlier,
        Proof::Off { reason: "x".to_owned(), when: 1, ended: None },
        "as it was written before"
    );
    assert_eq!(earlier.after_early_end(false, "exit 3", "x"), (None, Verdict::Nothing));
}

#[test]
fn proofs_survive_damaged_and_foreign_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let proofs = Proofs::new(Some(folder.path()));
    let baseline = Proof::Baseline(offered(&["secret_tool"]));
    let one = identity("one");
    assert_eq!(proofs.of(&one), Proof::Unknown);
    proofs.set(&one, baseline.clone());
    let file = folder.path().join("template/one.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("secret_tool") && !text.contains("does it"), "{text}");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let same = |proof: &Proof| match proof {
        Proof::Baseline(stored) => stored.difference(&offered(&["secret_tool"])).is_none(),
        _ => false,
    };
    assert!(same(&proofs.of(&one)));
    for damage in [
        "",
        "{",
        "null",
        "[]",
        "{\"schema\":1}",
        &text[..text.len() / 2],
        &text.replace("\"schema\":1", "\"schema\":9"),
    ] {
        std::fs::write(&file, damage).unwrap();
        assert_eq!(proofs.of(&one), Proof::Unknown, "{damage}");
        fuzz(damage.as_bytes());
    }
    fuzz(text.as_bytes());
    std::fs::write(&file, &text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(proofs.of(&one), Proof::Unknown, "anybody could have written it");
    std::fs::remove_file(&file).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    assert_eq!(proofs.of(&one), Proof::Unknown, "it does not wait for a writer");
    std::fs::remove_file(&file).unwrap();
    proofs.set(&one, baseline.clone());
    assert!(same(&proofs.of(&one)));
    proofs.set(&one, Proof::Unknown);
    assert!(!file.exists());
    // Where nothing can be written all is unknown, and nothing fails.
    let nowhere = Proofs::new(Some(Path::new("/dev/null")));
    nowhere.set(&one, baseline.clone());
    assert_eq!(nowhere.of(&one), Proof::Unknown);
    let in_memory = Proofs::new(None);
    in_memory.set(&one, baseline.clone());
    assert!(same(&in_memory.clone().of(&one)) && in_memory.of(&identity("two")) == Proof::Unknown);
}

/// Two folders with one package version: what a fork has proven in one is enough to try a fork in the other, and no more.
#[test]
fn a_proof_of_a_package_version_is_tried_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    for proofs in [Proofs::new(Some(folder.path())), Proofs::new(None)] {
        let [one, two, three] = ["one", "two", "three"].map(|key| identity(key).of_package("p"));
        let (same, other) = (offered(&["a"]), offered(&["a", "b"]));
        assert_eq!(proofs.of(&one), Proof::Unknown);
        proofs.set(&one, Proof::Baseline(same.clone()));
        assert_eq!(proofs.of(&two), Proof::Unknown, "no fork has shown anything yet");
        proofs.set(&one, Proof::Proven(same.clone()));
        assert_eq!(proofs.of(&identity("two").of_package("q")), Proof::Unknown, "another package or version");
        assert_eq!(proofs.of(&identity("two")), Proof::Unknown, "a script");
        let borrowed = proofs.of(&two);
        assert!(matches!(borrowed, Proof::Borrowed(_)) && borrowed.permits());
        assert!(matches!(borrowed.after_fork(&same), (Some(Proof::Proven(_)), None)));
        // Where it offers something else, an ordinary start is what counts, and nobody is warned.
        let (own, difference) = borrowed.after_fork(&other);
        assert!(difference.is_some() && own == Some(Proof::Own));
        proofs.set(&two, Proof::Own);
        assert!(!proofs.of(&two).permits() && proofs.of(&two).is_open());
        let after = proofs.of(&two).after_ordinary(other.clone());
        assert_eq!(after, (Some(Proof::Baseline(other.clone())), Verdict::Nothing));
        assert!(proofs.of(&three).permits(), "nothing speaks against forks");
        proofs.set(&one, Proof::off("it crashed"));
        assert_eq!(proofs.of(&three), Proof::Unknown, "not any more");
    }
}

#[test]
fn old_proofs_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let proofs = Proofs::new(Some(folder.path()));
    let [old, young, new] = ["a", "b", "c"].map(|digit| digit.repeat(32));
    let (old, young, new) = (old.as_str(), young.as_str(), new.as_str());
    for key in [old, young] {
        proofs.set(&identity(key), Proof::off("why"));
    }
    let at = |key: &str| folder.path().join("template").join(format!("{key}.json"));
    let past = SystemTime::now() - MAX_AGE - Duration::from_secs(60);
    std::fs::File::options().write(true).open(at(old)).unwrap().set_modified(past).unwrap();
    proofs.set(&identity(new), Proof::off("why"));
    // What only has the age, or is a link, is somebody else's.
    let theirs = folder.path().join("template/thesis.json");
    std::fs::write(&theirs, "").unwrap();
    std::fs::File::options().write(true).open(&theirs).unwrap().set_modified(past).unwrap();
    proofs.set(&identity(new), Proof::off("why"));
    assert!(theirs.exists());
    assert!(!at(old).exists() && at(young).exists() && at(new).exists());
}

#[test]
fn the_time_of_a_template_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let proofs = Proofs::new(Some(folder.path()));
    assert_eq!(proofs.memory_of("k"), Memory::default());
    let memory = Memory {
        ready: Some(Duration::from_millis(1180)),
        avoid: vec!["a.b".to_owned()],
        proven: "1234".to_owned(),
        partial: vec![Entry::Module("m".to_owned()), Entry::Script("/s".to_owned())],
    };
    proofs.remember("k", memory.clone());
    assert_eq!(Proofs::new(Some(folder.path())).memory_of("k"), memory);
    std::fs::write(folder.path().join("template/template-k.json"), "{}").unwrap();
    assert_eq!(proofs.memory_of("k"), Memory::default());
}

#[test]
fn another_version_has_another_identity() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let site = root.join("env/lib/python3.12/site-packages");
    let of_package = site.join("server-1.0.dist-info");
    std::fs::create_dir_all(&of_package).unwrap();
    std::fs::create_dir_all(root.join("env/bin")).unwrap();
    std::fs::write(of_package.join("METADATA"), "Name: server\nVersion: 1.0\n\n").unwrap();
    std::fs::write(of_package.join("RECORD"), "../../../bin/server,,\n").unwrap();
    for file in ["env/bin/python", "env/bin/server", "other.py"] {
        std::fs::write(root.join(file), "#!x\n").unwrap();
    }
    let text = |path: &str| root.join(path).to_str().unwrap().to_owned();
    let start = |entry: Entry| PythonStart {
        interpreter: root.join("env/bin/python"),
        flags: Vec::new(),
        entry,
        line: Vec::new(),
        name: String::new(),
    };
    let spec = StdioConfig::new("server", Vec::new(), &root);
    let identities = Identities::default();
    let of = |entry: &Entry, configured: &str| {
        identities.of(&spec, &start(entry.clone()), configured, &Secrets::default())
    };
    let (server, other) = (Entry::Script(text("env/bin/server")), Entry::Script(text("other.py")));
    let first = of(&server, "one");
    assert_eq!(first.words, "pypi server 1.0");
    assert_eq!(of(&server, "one"), first);
    assert_ne!(of(&server, "two"), first);
    assert_eq!(of(&server, "two").shared, first.shared, "as it is started from another folder");
    let script = of(&other, "one");
    assert_eq!(script.words, text("other.py"));
    std::fs::write(root.join("other.py"), "something else").unwrap();
    assert_ne!(of(&other, "one"), script, "it was edited");
    std::fs::write(of_package.join("METADATA"), "Name: server\nVersion: 1.1\n\n").unwrap();
    std::fs::rename(&of_package, site.join("server-1.1.dist-info")).unwrap();
    let second = of(&server, "one");
    assert_eq!(second.words, "pypi server 1.1");
    assert_ne!(second, first);
    assert_ne!(second.shared, first.shared);
    assert_eq!(of(&other, "one").shared, None);
}
