//! Whether Python servers will be forked from templates, and if not, why.

use super::Finding;
use crate::{
    config::{Config, Endpoint, ServerEntry},
    forking::Forecast,
    launch::Launcher,
    process::{Supervisor, TeardownScope},
    session::{self, Templates},
    tool::ServerName,
};

/// Knows what earlier starts have left. Starts nothing.
pub(super) struct TemplateForecasts {
    launcher: Launcher,
    templates: Templates,
}

impl TemplateForecasts {
    pub(super) fn new(config: &Config, scope: &TeardownScope) -> Self {
        let cache = config.cache_folder.as_deref();
        let templates = Templates::new(Supervisor::new(scope.clone()), cache, config.secrets.clone());
        Self { launcher: Launcher::new(cache), templates }
    }

    /// `None`: it is no Python server, or unknown because only its package runner knows.
    pub(super) fn of(&self, name: &ServerName, entry: &ServerEntry) -> Option<Finding> {
        let Endpoint::Stdio(spec) = &entry.server.as_ref().ok()?.endpoint else { return None };
        let name = name.as_str();
        Some(match session::forecast(spec, &self.launcher, &self.templates)? {
            Forecast::Never(why) => Finding::ok(name, format!("is not forked from a template: {why}")),
            Forecast::Later => {
                let text = "starts the ordinary way the next time, and may be forked from a template later";
                Finding::ok(name, text)
            }
            Forecast::Compared => {
                let text = "may be forked from a template the next time; the fork is compared with an ordinary start";
                Finding::ok(name, text)
            }
            Forecast::Proven => Finding::ok(name, "may be forked from a template, where that is quicker"),
            Forecast::Varies(how) => {
                let text = format!(
                    "is not forked from a template: it does not offer the same at each start, so that a fork cannot be compared: {how}"
                );
                Finding::ok(name, text)
            }
            Forecast::Off { reason, since, file } => {
                let since = humantime::format_rfc3339_seconds(since);
                let text =
                    format!("is not forked from a template since {since}: a fork was not the same: {reason}");
                let finding = Finding::warn(name, text);
                match file {
                    Some(file) => finding.help(format!("to have it tried again: rm {}", file.display())),
                    None => finding,
                }
            }
        })
    }
}
