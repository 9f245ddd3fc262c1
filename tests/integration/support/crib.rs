//! A daemon of one configuration, with a folder of its own, used through the built program.

use std::{
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

use super::{
    Lab,
    program::{Bench, code, err, out},
    wait_for,
};

/// A bench whose daemons have a folder of their own, and whose processes can be found.
pub(crate) struct Crib {
    pub(crate) bench: Bench,
    pub(crate) lab: Lab,
}

impl Crib {
    pub(crate) fn new(config: &str) -> Self {
        let lab = Lab::new();
        let env = format!("env = {{ {} = {:?} }}\n", Lab::VARIABLE, lab.mark());
        let config = config.replace("command = FIXTURE\n", &format!("command = FIXTURE\n{env}"));
        let crib = Self { bench: Bench::new(&config), lab };
        std::fs::create_dir(crib.run_folder()).unwrap();
        crib
    }

    /// Where its `servers.toml` is.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.bench.0.path()
    }

    pub(crate) fn run_folder(&self) -> PathBuf {
        self.bench.0.path().join("run")
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.bench.command(arguments);
        command.env("XDG_RUNTIME_DIR", self.run_folder()).env(Lab::VARIABLE, self.lab.mark());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command like [`Crib::run`], expects success, and returns what it printed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
        out(&output).trim().to_owned()
    }

    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.ok(&["ps", "--json"])).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.status()["daemon"]["pid"].as_u64().unwrap().try_into().unwrap()
    }

    /// Waits until a server is as wanted.
    pub(crate) fn await_server(&self, name: &str, is: impl Fn(&Value) -> bool) {
        wait_for(name, || {
            self.status()["servers"].as_array().unwrap().iter().any(|row| row["name"] == name && is(row))
        });
    }

    /// The files of the daemon's folder.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.run_folder().join("toolcrib")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.files().into_iter().find(|path| path.extension().is_some_and(|ending| ending == "sock")).unwrap()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.socket().with_extension("log")
    }

    /// A connection without the client's code, and the greeting.
    pub(crate) fn raw(&self) -> (UnixStream, BufReader<UnixStream>, Value) {
        let stream = UnixStream::connect(self.socket()).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let greeting = frame(&mut reader);
        (stream, reader, greeting)
    }

    pub(crate) fn spawn(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Crib {
    fn drop(&mut self) {
        // A failed test must not leave its daemon behind.
        let _ = self.run(&["down"]);
    }
}

pub(crate) fn frame(reader: &mut impl BufRead) -> Value {
    let mut line = String::new();
    assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
    serde_json::from_str(&line).unwrap()
}
