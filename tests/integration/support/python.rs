//! A Python environment of a test's own, whose servers are forked from a template.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use toolcrib::{
    Config, Endpoint, Loan, Manager, ServerConfig, ServerName, StdioConfig,
    config::{Scope, TemplatePackages},
    manager::{Borrower, TemplateState},
};

use super::{Lab, is_running, say, within};

const LIMIT: Duration = Duration::from_secs(60);

/// A [`Lab`] with an environment.
pub(crate) struct PythonLab {
    pub(crate) lab: Lab,
}

impl PythonLab {
    /// With these modules of tests/templates for all its servers, and `tool_server`.
    pub(crate) fn new(modules: &[&str]) -> Self {
        Self::on(Path::new("/usr/bin/python3"), modules)
    }

    /// And with numpy.
    pub(crate) fn with_numpy() -> Self {
        let numpy = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/venv-numpy");
        let python = numpy.join("bin/python");
        let made = Self::on(&python, &[]);
        let code = "import sysconfig; print(sysconfig.get_path('platlib'))";
        let packages = run(Command::new(python).args(["-c", code]));
        std::fs::write(made.site().join("numpy.pth"), packages).unwrap();
        made
    }

    fn on(python: &Path, modules: &[&str]) -> Self {
        let made = Self { lab: Lab::new() };
        let venv = ["-m", "venv", "--without-pip", "--system-site-packages"];
        run(Command::new(python).args(venv).arg(made.lab.file("env")));
        let site = made.site();
        for module in modules.iter().chain(&["tool_server"]) {
            let file = format!("{module}.py");
            std::fs::copy(source(&file), site.join(file)).unwrap();
        }
        made
    }

    pub(crate) fn site(&self) -> PathBuf {
        let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
        run(Command::new(self.python()).args(["-c", code])).trim().into()
    }

    pub(crate) fn python(&self) -> PathBuf {
        self.lab.file("env/bin/python")
    }

    /// A server of each task's own that runs this file of tests/templates, in a folder of its own.
    pub(crate) fn server(&self, name: &str, script: &str, args: &[String]) -> ServerConfig {
        let folder = self.lab.file(&format!("folder-of-{name}"));
        std::fs::create_dir_all(&folder).unwrap();
        // Alone there: modules beside a script are its own.
        let copy = self.lab.file(&format!("scripts-of-{name}")).join(script);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(source(script), &copy).unwrap();
        let args = [copy.display().to_string()].into_iter().chain(args.iter().cloned());
        let mut child = StdioConfig::new(self.python(), args.collect(), folder);
        child.template = TemplatePackages::All; // Those of a test are no known ones.
        child.set_env("PATH", std::env::var("PATH").unwrap());
        child.set_env(Lab::VARIABLE, self.lab.mark());
        let mut server = ServerConfig::new(ServerName::new(name).unwrap(), Endpoint::Stdio(child));
        server.scope = Scope::Task;
        server
    }

    /// A manager that keeps what it knows of forks.
    pub(crate) async fn manager(&self, servers: impl IntoIterator<Item = ServerConfig>) -> Manager {
        // With its first start an environment without bytecode would change, and be another one for the next.
        run(Command::new(self.python()).args(["-m", "compileall", "-q"]).arg(self.site()));
        let mut config = Config::new(servers);
        config.cache_folder = Some(self.lab.file("cache"));
        let manager = Manager::start(&config).await.unwrap();
        for row in &manager.report().servers {
            if let Err(error) = &row.outcome {
                panic!("{error}: {:?} {:?}", error.causes(), error.stderr_tail());
            }
        }
        manager
    }

    /// The templates of this environment that live.
    pub(crate) fn templates(&self) -> Vec<u32> {
        let line = format!("toolcrib-template\0{}\0", self.python().display());
        let ids = std::fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_one = |pid: &u32| {
            is_running(*pid)
                && std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == line.as_bytes())
        };
        ids.filter(is_one).collect()
    }

    /// The template of a server that has just been forked.
    pub(crate) fn template(&self) -> u32 {
        match *self.templates() {
            [template] => template,
            ref others => panic!("not one template: {others:?}"),
        }
    }
}

/// A loan of servers that are all forked, with what `tool` of each says.
pub(crate) async fn forked(manager: &Manager, tool: &str) -> (Loan, Vec<Value>) {
    let began = Instant::now();
    loop {
        let loan = manager.lend(Borrower::Task);
        let said = ask(&loan, tool).await;
        if said.iter().all(|said| said["forked"] == true) {
            return (loan, said);
        }
        assert!(began.elapsed() < LIMIT, "not all are forked: {said:?}");
    }
}

/// Calls `tool` of each server, and returns the answers.
pub(crate) async fn ask(loan: &Loan, tool: &str) -> Vec<Value> {
    let tools = loan.toolbox();
    let names: Vec<_> = tools.status().into_iter().map(|row| row.name).collect();
    let asking = names.iter().map(async |name| {
        let said = say(&tools, name.as_str(), tool).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{name}: {said}"))
    });
    futures_util::future::join_all(asking).await
}

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates").join(file)
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for the templates that are being made.
pub(crate) async fn until_made(manager: &Manager) {
    let is_making = || manager.templates().iter().any(|template| template.state == TemplateState::Starting);
    within("the templates", || !is_making()).await;
}
