//! Templates: processes that have loaded what many servers need, and start each of these by a fork.

use std::fmt;

use crate::{
    ProcessSpec, SpawnError, SpawnErrorKind, StderrTail, StopGrace, Supervisor, TeardownScope,
    child::program::program_path, platform, process::GuardStart,
};

/// A template: a process that starts others by a fork ([`Supervisor::spawn_from`]), on Linux.
///
/// Dropping it kills it. The processes that it has started go on; those that it has not started yet are not started. It
/// also ends with its [`Supervisor`] ([`Supervisor::end`], [`Supervisor::dismiss`]), with the zygote, and with this
/// process, also by SIGKILL.
pub struct Template {
    process: platform::TemplateProcess,
    stderr: StderrTail,
}

impl Template {
    /// See [`Supervisor::start_template`].
    pub(crate) async fn start(spec: &ProcessSpec, supervisor: &Supervisor) -> Result<Self, SpawnError> {
        let executable = match supervisor.scope() {
            TeardownScope::Guard { executable } => executable,
            TeardownScope::Group { because } => return Err(no_template_error(because)),
        };
        if spec.is_confined() {
            return Err(error("a template cannot have a sandbox or budgets"));
        }
        let (program, family) = (program_path(spec)?, supervisor.mark());
        let start = GuardStart {
            zygote: supervisor.zygote(),
            executable,
            family,
            program: &program,
            mark: family,
            grace: StopGrace::default(),
        };
        let (process, output) = platform::TemplateProcess::start(start, spec).await?;
        Ok(Self { process, stderr: StderrTail::drain(output, spec.redact.clone()) })
    }

    /// The process id of the template.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The next report of the template, of at most 128 KiB. `None` once it has ended, has closed its end of the socket,
    /// or has sent a longer one.
    ///
    /// Cancel safe: a report is either returned or kept. For one task at a time.
    pub async fn report(&self) -> Option<Vec<u8>> {
        self.process.report().await
    }

    /// The last lines of its standard output and error.
    pub fn stderr(&self) -> &StderrTail {
        &self.stderr
    }

    /// Whether its process has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Whether its process is stopped, by a signal or a debugger: it forks nothing until it is continued.
    pub fn is_stopped(&self) -> bool {
        self.process.is_stopped()
    }

    /// Whether it, or a fork of it, has slept over an order, blocked in something: it is of no use.
    pub fn is_silent(&self) -> bool {
        self.process.is_silent()
    }

    /// Its process, for a start of `spec` by `supervisor`.
    pub(crate) fn process_for(
        &self,
        spec: &ProcessSpec,
        supervisor: &Supervisor,
    ) -> Result<&platform::TemplateProcess, SpawnError> {
        if spec.sandbox.is_some() {
            return Err(error("a process with a sandbox cannot be started from a template"));
        }
        if !self.process.is_of(supervisor.mark()) {
            return Err(error("the template belongs to another supervisor"));
        }
        Ok(&self.process)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("pid", &self.pid()).finish_non_exhaustive()
    }
}

/// The error of a template where there are no guards.
pub(crate) fn no_template_error(because: &str) -> SpawnError {
    error(&format!("a template needs a guard, and there is none: {because}"))
}

fn error(what: &str) -> SpawnError {
    let help = "start the process without a template".to_owned();
    SpawnError { kind: SpawnErrorKind::Template, what: what.to_owned(), help: Some(help) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guard;

    #[tokio::test]
    async fn without_guards_there_is_no_template_and_it_says_so() {
        let supervisor = Supervisor::new(TeardownScope::new(&Guard::Off));
        let error = supervisor.start_template(&ProcessSpec::new("/bin/sh", vec![], "/")).await.unwrap_err();
        assert_eq!(error.kind, SpawnErrorKind::Template);
        assert!(error.what.starts_with("a template needs a guard, and there is none: "), "{error}");
        assert_eq!(error.help.unwrap(), "start the process without a template");
    }
}
