//! `${task}`, `${task_dir}`, `${run}` and `${run_dir}` in the settings of a server: what they stand for is known when the
//! server is started for a task.

use std::{
    borrow::Cow,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::config::{Endpoint, ServerConfig, StdioConfig};

/// A variable whose value differs from task to task. For servers with [`Scope::Task`](crate::config::Scope::Task).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TaskVariable {
    /// The id of the task, as a file name.
    Task,
    /// A folder for the servers of the task.
    TaskDir,
    /// The id of the run.
    Run,
    /// The folder of the run.
    RunDir,
}

/// The values of the variables of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskValues {
    /// The id of the task, as a file name.
    pub task: String,
    /// An absolute path to a folder that exists.
    pub task_dir: PathBuf,
    /// The id of the run.
    pub run: String,
    /// An absolute path.
    pub run_dir: PathBuf,
}

impl TaskVariable {
    /// All of them by their names in the configuration.
    pub const NAMES: [(&'static str, Self); 4] =
        [("task", Self::Task), ("task_dir", Self::TaskDir), ("run", Self::Run), ("run_dir", Self::RunDir)];

    /// The text that stands for it in an argument, a variable or a path of a [`StdioConfig`]. It holds a NUL, so that it is
    /// part of no real one, and is an absolute path where its value is one.
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Task => "\0task\0",
            Self::TaskDir => "/\0task_dir\0",
            Self::Run => "\0run\0",
            Self::RunDir => "/\0run_dir\0",
        }
    }

    /// The variable of that name.
    pub(in crate::config) fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, variable)| *variable)
    }
}

/// `text` with the names of variables in place of their placeholders, for messages.
pub(in crate::config) fn shown(text: &str) -> String {
    let named = |text: String, (name, variable): &(&str, TaskVariable)| {
        text.replace(variable.placeholder(), &format!("${{{name}}}"))
    };
    TaskVariable::NAMES.iter().fold(text.to_owned(), named)
}

/// Whether `text` holds a placeholder.
pub(in crate::config) fn has_placeholder(text: &OsStr) -> bool {
    text.as_bytes().contains(&0)
}

impl TaskValues {
    /// The values for a task of a run. The folders are absolute, and that of the task exists.
    pub fn new(
        task: impl Into<String>,
        task_dir: impl Into<PathBuf>,
        run: impl Into<String>,
        run_dir: impl Into<PathBuf>,
    ) -> Self {
        Self { task: task.into(), task_dir: task_dir.into(), run: run.into(), run_dir: run_dir.into() }
    }

    fn value(&self, variable: TaskVariable) -> Cow<'_, str> {
        match variable {
            TaskVariable::Task => self.task.as_str().into(),
            TaskVariable::TaskDir => self.task_dir.to_string_lossy(),
            TaskVariable::Run => self.run.as_str().into(),
            TaskVariable::RunDir => self.run_dir.to_string_lossy(),
        }
    }

    fn put_into(&self, text: &mut String) {
        if has_placeholder(text.as_ref()) {
            for (_, variable) in TaskVariable::NAMES {
                *text = text.replace(variable.placeholder(), &self.value(variable));
            }
        }
    }

    fn put_into_path(&self, path: &mut PathBuf) {
        if has_placeholder(path.as_os_str()) {
            let mut text = path.to_string_lossy().into_owned();
            self.put_into(&mut text);
            *path = text.into();
        }
    }
}

impl ServerConfig {
    /// Whether it has a [variable](TaskVariable) whose value differs from task to task.
    pub fn varies_by_task(&self) -> bool {
        match &self.endpoint {
            Endpoint::Stdio(child) => child.varies_by_task(),
            Endpoint::Builtin { args, .. } => args.iter().any(|arg| has_placeholder(arg.as_ref())),
            Endpoint::Http(_) | Endpoint::Local(_) => false,
        }
    }

    /// Itself with the values of a task.
    #[doc(hidden)]
    #[must_use]
    pub fn of_task(&self, values: &TaskValues) -> Self {
        let mut server = self.clone();
        match &mut server.endpoint {
            Endpoint::Stdio(child) => child.put(values),
            Endpoint::Builtin { args, .. } => args.iter_mut().for_each(|arg| values.put_into(arg)),
            Endpoint::Http(_) | Endpoint::Local(_) => {}
        }
        server
    }
}

impl StdioConfig {
    /// All paths of its sandbox are looked at, those of others too.
    fn varies_by_task(&self) -> bool {
        let texts = self.args.iter().chain(self.env.values()).map(OsStr::new);
        let walls = self.sandbox.iter();
        let paths =
            walls.flat_map(|walls| walls.read.iter().chain(&walls.write).chain(&walls.written_by_others));
        texts.chain(paths.chain([&self.cwd]).map(|path| path.as_os_str())).any(has_placeholder)
    }

    fn put(&mut self, values: &TaskValues) {
        self.args.iter_mut().for_each(|arg| values.put_into(arg));
        if self.env.values().any(|value| has_placeholder(value.as_ref())) {
            for value in Arc::make_mut(&mut self.env).values_mut() {
                values.put_into(value);
            }
        }
        values.put_into_path(&mut self.cwd);
        if let Some(walls) = &mut self.sandbox {
            let paths = walls.read.iter_mut().chain(&mut walls.write).chain(&mut walls.written_by_others);
            paths.for_each(|path| values.put_into_path(path));
        }
    }
}

/// Why a path of `write` cannot be opened for the tasks: only the folder of a task has nothing else in it.
pub(in crate::config) fn write_problem(path: &Path) -> Option<&'static str> {
    let own = path.starts_with(TaskVariable::TaskDir.placeholder());
    let leaves = path.components().any(|part| part == std::path::Component::ParentDir);
    (has_placeholder(path.as_os_str()) && (!own || leaves))
        .then_some("a path that differs from task to task must begin with ${task_dir}, without `..`")
}
