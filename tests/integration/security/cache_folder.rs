//! A `cache_folder` that a project's file names, and that came with it: nothing in it says what is started, and nothing is removed there.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    time::{Duration, SystemTime},
};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::program::{Bench, err};

/// The name of the record of a program with these words, in `/`, without variables.
fn record_key(words: &[&str]) -> String {
    let mut hash = Sha256::new();
    for word in words {
        hash.update((word.len() as u64).to_le_bytes());
        hash.update(word.as_bytes());
    }
    let bits = hash.finalize().iter().take(16).fold(0, |bits: u128, byte| bits << 8 | u128::from(*byte));
    format!("{bits:032x}")
}

#[test]
fn records_that_came_with_a_folder_start_nothing() {
    let bench = Bench::new("");
    let root = bench.0.path().canonicalize().unwrap();
    let (runner, mark) = (root.join("npx"), root.join("planted"));
    bench.file("npx", "#!/bin/sh\nexit 3\n");
    fs::set_permissions(&runner, fs::Permissions::from_mode(0o755)).unwrap();
    let package = "@modelcontextprotocol/server-everything@2026.1.2";
    let config = format!(
        "[defaults]\ncache_folder = \"theirs\"\ninherit_env = []\nstart_caches = false\n\
         [servers.fetch]\ncommand = {runner:?}\nargs = [\"-y\", {package:?}]\ncwd = \"/\"\n"
    );
    bench.file("servers.toml", &config);
    let key = record_key(&[runner.to_str().unwrap(), "/", "-y", package]);
    let planted = json!({"schema": 2, "made": 1_700_000_000, "program": "/bin/sh",
        "words": ["-c", format!("touch {}", mark.display())], "rest": 2, "cwd": null, "set": {}, "unset": [],
        "proofs": [], "runner_time": null});
    fs::create_dir_all(root.join("theirs/launch")).unwrap();
    bench.file(&format!("theirs/launch/{key}.json"), &planted.to_string());
    let told = err(&bench.run(&["tools"]));
    assert!(!mark.exists(), "{told}");
    assert!(told.contains("cache_folder: ") && told.contains("theirs is not used"), "{told}");
    assert_eq!(fs::read_dir(root.join("theirs")).unwrap().count(), 1, "nothing is written there");
}

#[test]
fn cleaning_removes_nothing_behind_a_link() {
    let bench = Bench::new("[defaults]\ncache_folder = \"theirs\"\n[servers.fix]\ncommand = FIXTURE\n");
    let root = bench.0.path();
    fs::create_dir_all(root.join("pictures")).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(90 * 24 * 3600);
    for number in 0..1100 {
        let file = fs::File::create(root.join(format!("pictures/{number}.jpg"))).unwrap();
        file.set_modified(long_ago).unwrap();
    }
    let count = || fs::read_dir(root.join("pictures")).unwrap().count();
    // In a folder of the file, and in that of the user.
    for cache in ["theirs", "cache/toolcrib"] {
        let _ = fs::remove_dir_all(root.join(cache));
        fs::create_dir_all(root.join(cache)).unwrap();
        for kind in ["catalog", "template", "launch"] {
            symlink(root.join("pictures"), root.join(cache).join(kind)).unwrap();
        }
        let told = err(&bench.run(&["tools"]));
        let new = fs::read_dir(root.join("pictures")).unwrap().flatten();
        let new = new.filter(|entry| entry.path().extension().is_none_or(|end| end != "jpg")).count();
        assert_eq!(count() - new, 1100, "{cache}: {told}");
    }
}
