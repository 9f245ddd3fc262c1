//! The public names of the library: a new one is a decision, so all are listed in `names.txt`.

use std::{collections::BTreeSet, fs, path::Path};

/// The names that `text`, a source file of `folder`, makes public.
fn public(text: &str, folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut hidden = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            hidden |= line == "#[doc(hidden)]";
            continue;
        }
        let is_hidden = std::mem::take(&mut hidden);
        let Some(item) = line.strip_prefix("pub ").filter(|_| !is_hidden) else { continue };
        if let Some(tree) = item.strip_prefix("use ") {
            let mut tree = tree.to_owned();
            while !tree.ends_with(';') {
                tree.push_str(lines.next().unwrap());
            }
            let leaves = tree.split(['{', '}', ',', ';']).map(str::trim);
            for leaf in leaves.filter(|leaf| !leaf.is_empty() && !leaf.ends_with("::")) {
                let (path, name) = leaf.rsplit_once("::").unwrap_or(("", leaf));
                if name == "*" {
                    let file = path.trim_start_matches("self::").replace("::", "/");
                    let file = fs::read_to_string(folder.join(file).with_extension("rs")).unwrap();
                    names.extend(public(&file, folder));
                } else {
                    names.insert(name.to_owned());
                }
            }
            continue;
        }
        let mut words =
            item.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
        let kind =
            words.find(|word| !["async", "const", "unsafe"].contains(word) || item.starts_with("const "));
        // A module of the root has lines of its own.
        if kind.is_some_and(|kind| kind != "mod") {
            names.insert(words.next().unwrap().to_owned());
        }
    }
    names
}

/// The public modules of the root, but for those that are hidden from the documentation.
fn modules(root: &str) -> Vec<&str> {
    let mut before = "";
    let mut found = Vec::new();
    for line in root.lines() {
        let module = line.strip_prefix("pub mod ").and_then(|line| line.strip_suffix(';'));
        found.extend(module.filter(|_| before != "#[doc(hidden)]"));
        before = line;
    }
    found
}

#[test]
fn public_names_are_listed() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let src = package.join("src");
    let root = fs::read_to_string(src.join("lib.rs")).unwrap();
    let list = |names: BTreeSet<String>| names.into_iter().collect::<Vec<_>>().join(" ");
    let mut lines = vec![format!("toolcrib: {}", list(public(&root, &src)))];
    for module in modules(&root) {
        let text = fs::read_to_string(src.join(module).with_extension("rs")).unwrap();
        lines.push(format!("toolcrib::{module}: {}", list(public(&text, &src.join(module)))));
    }
    let now = lines.join("\n") + "\n";
    let file = package.join("tests/integration/house/names.txt");
    if std::env::var_os("TOOLCRIB_WRITE_DOCS").is_some() {
        fs::write(&file, &now).unwrap();
    }
    let listed = fs::read_to_string(&file).unwrap_or_default();
    assert!(
        now == listed,
        "public names are not as in {}: if that is meant, set TOOLCRIB_WRITE_DOCS=1.\n{now}",
        file.display()
    );
}
