//! Tests which packages commands start, with fake installations on disk.

use std::{fs, os::unix::fs::symlink};

use super::*;

struct House(tempfile::TempDir);

impl House {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn file(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn npm(&self, folder: &str, name: &str, version: &str) {
        let manifest = format!("{{\"name\": {name:?}, \"version\": {version:?}, \"bin\": {{}}}}");
        self.file(&format!("{folder}/package.json"), &manifest);
        self.file(&format!("{folder}/dist/index.js"), "");
    }

    fn pypi(&self, prefix: &str, name: &str, version: &str, record: &str) {
        let folder = format!("{prefix}/lib/python3.12/site-packages/{name}-{version}.dist-info");
        let metadata = format!("Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n\nVersion: 9\n");
        self.file(&format!("{folder}/METADATA"), &metadata);
        self.file(&format!("{folder}/RECORD"), record);
    }

    /// The package of a command line whose program lies in the house, or in `/bin`.
    fn of(&self, line: &str) -> Option<String> {
        let mut words = line.split(' ');
        let program = self.at(words.next().unwrap());
        let args: Vec<String> = words.map(str::to_owned).collect();
        of(&program, &args, self.0.path()).map(|package| package.to_string())
    }
}

#[test]
fn node_packages_are_found_by_their_folder() {
    let house = House::new();
    house.npm("a/node_modules/@scope/server", "@scope/server", "1.2.3");
    house.npm("a/node_modules/plain", "plain", "2.0.0-rc.1");
    house.npm("a/node_modules/plain/node_modules/inner", "inner", "3.0.0");
    house.npm("own", "own", "0.1.0");
    fs::create_dir_all(house.at("a/node_modules/.bin")).unwrap();
    symlink("../@scope/server/dist/index.js", house.at("a/node_modules/.bin/server")).unwrap();
    for (line, package) in [
        ("a/node_modules/.bin/server x", Some("npm @scope/server 1.2.3")),
        ("bin/node a/node_modules/.bin/server", Some("npm @scope/server 1.2.3")),
        (
            "bin/node --no-warnings -r a/node_modules/plain/dist/index.js a/node_modules/@scope/server/dist/index.js",
            Some("npm @scope/server 1.2.3"),
        ),
        ("bin/node a/node_modules/plain", Some("npm plain 2.0.0-rc.1")),
        ("bin/node a/node_modules/plain/node_modules/inner/dist/index.js", Some("npm inner 3.0.0")),
        // A file to work on is not what is started.
        ("bin/server a/node_modules/plain/dist/index.js", None),
        ("bin/node own/dist/index.js a/node_modules/plain/dist/index.js", None),
        ("bin/node -e 1 a/node_modules/plain/dist/index.js", None),
        ("bin/node a/node_modules/gone/index.js", None),
        ("bin/node", None),
    ] {
        assert_eq!(house.of(line).as_deref(), package, "{line}");
    }
}

#[test]
fn python_packages_are_found_by_their_records() {
    let house = House::new();
    house.pypi(
        "env",
        "mcp-server-time",
        "1.0",
        "mcp_server_time/__init__.py,sha256=x,1\n../../../bin/time,,\n",
    );
    house.pypi("env", "Other.Name", "2.0", "other/sub/tool.py,,\nsrc/bin/fake,,\nother/bin/time,,\n");
    house.pypi("env", "edited_here", "3.0", "__editable__.edited_here-3.0.pth,,\n");
    for name in ["env/bin/python3", "env/bin/python3.12", "env/bin/time", "env/bin/fake", "env/bin/unowned"] {
        house.file(name, "");
    }
    fs::create_dir_all(house.at("home/bin")).unwrap();
    symlink(house.at("env/bin/time"), house.at("home/bin/time")).unwrap();
    for (line, package) in [
        ("env/bin/time --local", Some("pypi mcp-server-time 1.0")),
        ("home/bin/time", Some("pypi mcp-server-time 1.0")),
        ("env/bin/python3 env/bin/time x", Some("pypi mcp-server-time 1.0")),
        ("env/bin/python3.12 -X dev -m mcp_server_time", Some("pypi mcp-server-time 1.0")),
        ("env/bin/python3 -u -m other.sub.tool -m mcp_server_time", Some("pypi Other.Name 2.0")),
        ("env/bin/python3 -m edited_here.server", Some("pypi edited_here 3.0")),
        ("env/bin/python3 -m other", None),
        ("env/bin/python3 -c x -m mcp_server_time", None),
        ("env/bin/fake", None),
        ("env/bin/unowned", None),
        ("env/bin/python3 server.py", None),
    ] {
        assert_eq!(house.of(line).as_deref(), package, "{line}");
    }
    house.pypi("env", "rival", "1.0", "../../../bin/time,,\n");
    assert_eq!(house.of("env/bin/time"), None, "two claim it");
    house.file("mcp_server_time.py", "");
    assert_eq!(house.of("env/bin/python3 -m mcp_server_time"), None, "its own folder comes first");
}
