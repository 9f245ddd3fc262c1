//! Tests records: what they contain, what they leave out, and when they are valid.

use super::*;
use crate::record_folder::RecordFolder;

/// A Python environment with one program, as uv makes it, and a runner.
struct House {
    folder: tempfile::TempDir,
    spec: StdioConfig,
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in ["venv/bin", "venv/lib/python3.12/site-packages/server-1.dist-info", "work"] {
            std::fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in ["venv/pyvenv.cfg", "venv/bin/server", "uvx", "python3.12"] {
            std::fs::write(root.join(path), path).unwrap();
        }
        std::os::unix::fs::symlink(root.join("python3.12"), root.join("venv/bin/python")).unwrap();
        let args = ["server@1.0", "--token", "hunter2-hunter2"].map(str::to_owned).to_vec();
        let mut spec = StdioConfig::new("uvx", args, root.join("work"));
        let env = [("PATH", "/bin"), ("TERM", "xterm"), ("GONE", "x")];
        spec.env = Arc::new(env.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        Self { folder, spec }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(name)
    }

    fn seen(&self) -> ObservedProcess {
        let text = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut env = (*self.spec.env).clone();
        env.remove("GONE");
        env.insert("PATH".to_owned(), "/venv/bin:/bin".to_owned());
        env.insert("SHLVL".to_owned(), "1".to_owned());
        let argv = ["--token", "hunter2-hunter2"].map(str::to_owned);
        ObservedProcess {
            exe: self.path("python3.12"),
            argv: [text("venv/bin/python"), text("venv/bin/server")].into_iter().chain(argv).collect(),
            cwd: self.path("work"),
            env,
        }
    }

    fn record(&self, seen: ObservedProcess) -> Result<Record, String> {
        let runner = Runner::of(&self.spec.command, &self.spec.args).unwrap();
        let secrets = Secrets::new(["hunter2-hunter2".to_owned()]);
        Record::make(&runner, &self.path("uvx"), &self.spec, seen, &secrets)
    }
}

#[test]
fn a_record_repeats_the_start_and_holds_no_secret() {
    let house = House::new();
    let record = house.record(house.seen()).unwrap();
    let direct = record.applied_to(&house.spec).unwrap();
    assert_eq!(direct.command, house.path("venv/bin/python"), "not the interpreter behind it");
    let script = house.path("venv/bin/server").to_str().unwrap().to_owned();
    assert_eq!(direct.args, [script.as_str(), "--token", "hunter2-hunter2"]);
    let env: Vec<(&str, &str)> = direct.env.iter().map(|(name, value)| (&**name, &**value)).collect();
    assert_eq!(env, [("PATH", "/venv/bin:/bin"), ("TERM", "xterm")]);
    assert_eq!(direct.cwd, house.spec.cwd);
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
}

#[test]
fn uncertain_starts_are_not_recorded() {
    let house = House::new();
    let mut renamed = house.seen();
    renamed.argv[0] = "my server".to_owned();
    assert!(house.record(renamed).unwrap_err().contains("changed its name"));
    let mut rearranged = house.seen();
    rearranged.argv.swap(2, 3);
    assert!(house.record(rearranged).unwrap_err().contains("changes the arguments"));
    for (name, value) in [("COPY", "x hunter2-hunter2"), ("NPM_TOKEN", "something")] {
        let mut telling = house.seen();
        telling.env.insert(name.to_owned(), value.to_owned());
        assert!(house.record(telling).unwrap_err().contains("a secret"), "{name}");
    }
}

#[test]
fn a_record_is_valid_while_its_files_are_unchanged() {
    let hour = Duration::from_secs(60 * 60);
    type Change = fn(&House);
    let changes: [(&str, Change); 6] = [
        ("the script", |house| std::fs::write(house.path("venv/bin/server"), "longer than before").unwrap()),
        ("an install", |house| {
            std::fs::create_dir(house.path("venv/lib/python3.12/site-packages/other-1.dist-info")).unwrap();
        }),
        ("the interpreter", |house| std::fs::remove_file(house.path("python3.12")).unwrap()),
        ("the runner", |house| std::fs::write(house.path("uvx"), "new").unwrap()),
        ("a project", |house| std::fs::write(house.path("work/pyproject.toml"), "").unwrap()),
        ("a setting above", |house| std::fs::write(house.path("uv.toml"), "").unwrap()),
    ];
    for (what, change) in changes {
        let house = House::new();
        let record = house.record(house.seen()).unwrap();
        let now = SystemTime::now();
        assert!(record.holds(Freshness::Cached, now), "{what}");
        assert!(record.holds(Freshness::Pinned, now + 100 * hour), "{what}");
        assert!(!record.holds(Freshness::Cached, now + 100 * hour), "{what}");
        assert!(!record.holds(Freshness::Pinned, now - hour), "{what}");
        change(&house);
        assert!(!record.holds(Freshness::Pinned, SystemTime::now()), "{what}");
    }
}

#[test]
fn a_project_with_other_sources_is_started_by_uv() {
    let mut house = House::new();
    house.spec.command = "uv".into();
    house.spec.args = ["run", "server", "--token", "hunter2-hunter2"].map(str::to_owned).to_vec();
    std::fs::write(house.path("work/pyproject.toml"), "[project]\n").unwrap();
    house.record(house.seen()).unwrap();
    std::fs::write(house.path("work/pyproject.toml"), "[tool.uv.sources]\n").unwrap();
    assert!(house.record(house.seen()).unwrap_err().contains("files of others"));
}

#[test]
fn damaged_or_shared_record_files_are_ignored() {
    use std::os::unix::fs::PermissionsExt;
    let house = House::new();
    let record = house.record(house.seen()).unwrap();
    let records = RecordFolder::new(house.path("cache/launch"));
    assert_eq!(records.load::<Record>("one"), None);
    records.save("one", &record).unwrap();
    assert_eq!(records.load::<Record>("one").as_ref(), Some(&record));
    let file = house.path("cache/launch/one.json");
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    mode(0o666);
    assert_eq!(records.load::<Record>("one"), None, "anybody could have written it");
    mode(0o600);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() / 2]).unwrap();
    assert_eq!(records.load::<Record>("one"), None, "half of it");
    records.save("one", &record).unwrap();
    records.remove("one");
    assert_eq!(records.load::<Record>("one"), None);
    assert_eq!(std::fs::read_dir(house.path("cache/launch")).unwrap().count(), 0, "no drafts stay");
}

#[test]
fn the_record_key_covers_the_inputs_of_the_runner() {
    let house = House::new();
    let runner = house.path("uvx");
    let before = key(&house.spec, &runner);
    let with = |change: fn(&mut StdioConfig)| {
        let mut spec = house.spec.clone();
        change(&mut spec);
        key(&spec, &runner)
    };
    assert_eq!(before, with(|spec| spec.set_env("TERM", "dumb")));
    assert_ne!(before, with(|spec| spec.set_env("PATH", "/usr/bin".to_owned())));
    assert_ne!(before, with(|spec| spec.set_env("UV_INDEX", "x")));
    assert_ne!(before, with(|spec| drop(spec.args.pop())));
    assert_ne!(before, with(|spec| spec.cwd = "/".into()));
    assert_ne!(before, key(&house.spec, Path::new("/other/uvx")));
}

/// Rewrites a lockfile with the same text, as npx does for a package with a range of versions.
#[test]
fn files_that_are_rewritten_with_the_same_words_hold() {
    let mut house = House::new();
    house.spec.command = "npx".into();
    house.spec.args = ["-y", "server@^1", "--token", "hunter2-hunter2"].map(str::to_owned).to_vec();
    let lock = house.path("work/package-lock.json");
    let write = |text: &str| {
        std::fs::write(&lock, text).unwrap();
        let file = std::fs::File::options().write(true).open(&lock).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(text.len() as u64)).unwrap();
    };
    write("{\"a\": 1}");
    let record = house.record(house.seen()).unwrap();
    let now = SystemTime::now();
    std::fs::remove_file(&lock).unwrap();
    assert!(!record.holds(Freshness::Cached, now), "it is gone");
    std::fs::write(&lock, "{\"a\": 1}").unwrap();
    assert!(record.holds(Freshness::Cached, now), "another file with the same words");
    assert!(!record.changed_since(now + Duration::from_secs(1)), "nothing was installed");
    write("{\"a\": 2}");
    assert!(!record.holds(Freshness::Cached, now), "other words of the same length");
}
