//! Tables of command lines, and of first lines of scripts.

use std::{fs, os::unix::fs::symlink};

use super::*;

/// An environment at ROOT/env as installers make it, and the interpreter behind it.
struct House {
    _folder: tempfile::TempDir,
    root: PathBuf,
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let house = Self { _folder: folder, root };
        house.write("real/python3.12", "\x7fELF");
        house.write("real/pypy3.10", "\x7fELF");
        house.write("real/python3.8", "\x7fELF");
        house.write("shims/python3", "#!/usr/bin/env bash\n");
        house.write("work/server.py", "print()\n");
        for (name, real) in
            [("python", "python3"), ("python3", "../../real/python3.12"), ("pypy", "../../real/pypy3.10")]
        {
            house.write("env/bin/x", "");
            symlink(real, house.root.join("env/bin").join(name)).unwrap();
        }
        house.write("alien/bin/x", "");
        symlink("../../real/pypy3.10", house.root.join("alien/bin/python")).unwrap();
        symlink("../../real/python3.8", house.root.join("alien/bin/python3")).unwrap();
        house
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn full(&self, text: &str) -> String {
        text.replace("ROOT", self.root.to_str().unwrap())
    }

    fn spec(&self, line: &str) -> StdioConfig {
        let line = self.full(line);
        let mut words = line.split(' ').map(str::to_owned);
        let command = words.next().unwrap();
        let mut spec = StdioConfig::new(command, words.collect(), self.root.join("work"));
        spec.set_env("PATH", self.full("ROOT/env/bin:/usr/bin"));
        spec
    }

    /// `INTERPRETER [FLAGS] ENTRY | COMMAND LINE | NAME`.
    fn seen(&self, line: &str) -> Result<String, &'static str> {
        let start = PythonStart::of(&self.spec(line))?;
        let entry = match &start.entry {
            Entry::Module(name) => format!("module:{name}"),
            Entry::Script(path) => format!("script:{path}"),
        };
        let text = format!(
            "{} {:?} {entry} | {} | {}",
            start.interpreter.display(),
            start.flags,
            start.line.join(" "),
            start.name
        );
        Ok(text.replace(self.root.to_str().unwrap(), "ROOT").replace('"', ""))
    }
}

#[test]
fn pythons_are_recognised_by_their_command_lines() {
    let house = House::new();
    for (line, expected) in [
        ("python -m server --x", "ROOT/env/bin/python [] module:server | python -m server --x | python"),
        ("python3 -um a.b", "ROOT/env/bin/python3 [-u] module:a.b | python3 -um a.b | python3"),
        (
            "ROOT/env/bin/python -I -OO -W ignore -Xutf8 -X dev -mserver -c",
            "ROOT/env/bin/python [-I, -O, -O, -W, ignore, -X, utf8, -X, dev] module:server | \
             ROOT/env/bin/python -I -OO -W ignore -Xutf8 -X dev -mserver -c | python",
        ),
        (
            "python server.py -i",
            "ROOT/env/bin/python [] script:ROOT/work/server.py | python server.py -i | python",
        ),
        (
            "ROOT/real/python3.12 -s ROOT/work/server.py",
            "ROOT/real/python3.12 [-s] script:ROOT/work/server.py | ROOT/real/python3.12 -s ROOT/work/server.py | python3.12",
        ),
    ] {
        assert_eq!(house.seen(line), Ok(expected.to_owned()), "{line}");
    }
    for (line, why) in [
        ("python -c pass", "nothing that can be shared"),
        ("python -uc pass", "nothing that can be shared"),
        ("python -", "nothing that can be shared"),
        ("python", "nothing that can be shared"),
        ("python -m", "nothing that can be shared"),
        ("python --version", "nothing that can be shared"),
        ("python -i server.py", "cannot be shared"),
        ("python -X importtime server.py", "cannot be shared"),
        ("python -x server.py", "cannot be shared"),
        ("python none.py", "script is missing"),
        ("python .", "script is missing"),
        ("pypy server.py", "no Python"),
        ("ROOT/alien/bin/python server.py", "not CPython"),
        ("ROOT/alien/bin/python3 server.py", "older than 3.9"),
        ("ROOT/shims/python3 server.py", "version manager"),
        ("ROOT/none/python3 server.py", "Python is missing"),
        ("nothing-there", "program is missing"),
        ("ROOT/real/python3.12t server.py", "cannot be read"),
        ("ROOT/work/server.py", "no Python"),
    ] {
        let seen = house.seen(line);
        assert!(seen.as_ref().is_err_and(|told| told.contains(why)), "{line}: {seen:?}");
    }
}

#[test]
fn scripts_are_recognised_by_their_first_lines() {
    let house = House::new();
    let script = "ROOT/env/bin/mcp-server-with-a-name";
    let direct = "[] script:ROOT/env/bin/mcp-server-with-a-name | ROOT/env/bin/python3 ROOT/env/bin/mcp-server-with-a-name --x";
    let quoted = "ROOT/env/bin/python [] script:ROOT/env/bin/mcp-server-with-a-name | \
                  ROOT/env/bin/python ROOT/env/bin/mcp-server-with-a-name --x | python";
    for (head, expected) in [
        ("#!ROOT/env/bin/python3\n", format!("ROOT/env/bin/python3 {direct} | mcp-server-with")),
        (
            "#! ROOT/env/bin/python3 -Es \nimport sys\n",
            format!("ROOT/env/bin/python3 {direct} | mcp-server-with")
                .replace("[]", "[-E, -s]")
                .replace("python3 ROOT", "python3 -Es ROOT"),
        ),
        (
            "#!/usr/bin/env python3\n",
            format!("ROOT/env/bin/python3 {direct} | python3").replace("| ROOT/env/bin/python3", "| python3"),
        ),
        (
            "#!/usr/bin/env -S python3 -u\n",
            format!("ROOT/env/bin/python3 {direct} | python3")
                .replace("[]", "[-u]")
                .replace("| ROOT/env/bin/python3", "| python3 -u"),
        ),
        ("#!/bin/sh\n'''exec' 'ROOT/env/bin/python' \"$0\" \"$@\"\n' '''\nimport sys\n", quoted.to_owned()),
        ("#!/bin/sh\n'''exec' ROOT/env/bin/python \"$0\" \"$@\"\n' '''\n", quoted.to_owned()),
        ("#!/bin/sh\n'''exec' \"ROOT/env/bin/python\" \"$0\" \"$@\"\n' '''\n", quoted.to_owned()),
        (
            "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n",
            quoted.to_owned(),
        ),
    ] {
        house.write("env/bin/mcp-server-with-a-name", house.full(head));
        assert_eq!(house.seen(&format!("{script} --x")), Ok(expected), "{head}");
    }
    for (head, why) in [
        ("import sys\n", "no Python"),
        ("#!/bin/bash\n", "no Python"),
        ("#!/bin/sh\nexec python\n", "no Python"),
        ("#!/bin/sh\n'''exec' $HOME/python \"$0\" \"$@\"\n' '''\n", "no Python"),
        ("#!/bin/sh\n'''exec' '/a'b' \"$0\" \"$@\"\n' '''\n", "no Python"),
        ("#!/bin/sh\n'''exec' ROOT/env/bin/python \"$0\" \"$@\"\necho\n", "no Python"),
        ("#!/bin/sh -e\n'''exec' ROOT/env/bin/python \"$0\" \"$@\"\n' '''\n", "no Python"),
        ("#!/usr/bin/env -S uv run --script\n", "no Python"),
        ("#!/usr/bin/env -S python3 \"-u\"\n", "not understood"),
        ("#!/usr/bin/env X=1 python3\n", "not understood"),
        ("#!/usr/bin/env -S X=1 python3\n", "no Python"),
        ("#!/usr/bin/env python3.99\n", "is missing"),
        ("#!python3\n", "not understood"),
        ("#!ROOT/gone/bin/python\n", "is missing"),
        ("#!ROOT/shims/python3\n", "version manager"),
        ("#!ROOT/env/bin/python3 -E -s\n", "cannot be shared"),
        ("#!ROOT/env/bin/python3 -m\n", "something else"),
        ("#!ROOT/env/bin/python3\nPK\x03\x04\0\0", "no source"),
        ("", "no Python"),
    ] {
        house.write("env/bin/mcp-server-with-a-name", house.full(head));
        let seen = house.seen(script);
        assert!(seen.as_ref().is_err_and(|told| told.contains(why)), "{head}: {seen:?}");
    }
    let long = format!("#!{}\n", "/x".repeat(200));
    house.write("env/bin/mcp-server-with-a-name", long);
    assert_eq!(house.seen(script), Err(NO_PYTHON));
}

#[test]
fn what_is_of_one_process_has_no_template() {
    let house = House::new();
    let mut spec = house.spec("python -m server");
    PythonStart::of(&spec).unwrap();
    spec.set_env("PYTHONINSPECT", "1");
    assert!(PythonStart::of(&spec).unwrap_err().contains("for one Python process"));
    let mut spec = house.spec("python -m server --token hunter2");
    assert!(!format!("{:?}", PythonStart::of(&spec).unwrap()).contains("hunter2"));
    spec.sandbox = Some(crate::config::Sandbox::default());
    assert!(PythonStart::of(&spec).unwrap_err().contains("sandbox"));
}
