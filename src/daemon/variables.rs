//! Variables that are set for a client and were not for its daemon: the client tells its user of them.

use std::sync::Arc;

use super::wire::DaemonReply;
use crate::{
    config::Env,
    error::{Error, RemoteError},
    start::ServerEvent,
};

/// Corrects the help of every error of a server that misses a variable.
pub(super) fn correct(reply: &mut DaemonReply) {
    each_error(reply, |error| {
        if let Error::Remote(told) = error
            && told.unset_variable.is_some()
        {
            correct_help(told, &Env::process());
        }
    });
}

/// `here`: the variables of the command that asks.
fn correct_help(told: &mut RemoteError, here: &Env) {
    let Some(variable) = &told.unset_variable else { return };
    let name = &variable.name;
    let again = "then `toolcrib down` and `toolcrib up -d`";
    let is_set = here.get(name).is_some_and(|value| !value.is_empty());
    told.help = match (is_set, &told.server) {
        (true, Some(server)) if !variable.inherited => Some(format!(
            "the daemon was started without {name}, which is set here: add `inherit_env = [\"{name}\"]` to \
             `[servers.{server}]`, {again}"
        )),
        (true, _) => Some(format!(
            "the daemon was started without {name}, which is set here: `toolcrib down`, then `toolcrib up -d`"
        )),
        (false, _) => told.help.take().map(|help| format!("{help}, {again}")),
    };
}

fn each_error(reply: &mut DaemonReply, mut correct: impl FnMut(&mut Error)) {
    // They were read a moment ago: nobody else holds them.
    let mut shared = |error: Option<&mut Arc<Error>>| {
        if let Some(error) = error.and_then(Arc::get_mut) {
            correct(error);
        }
    };
    match reply {
        DaemonReply::Error(error) => correct(error),
        DaemonReply::Failed(failures) => failures.iter_mut().for_each(correct),
        DaemonReply::Servers(rows) => rows.iter_mut().for_each(|row| shared(row.error.as_mut())),
        DaemonReply::Status(status) => {
            status.servers.iter_mut().for_each(|row| shared(row.status.error.as_mut()));
        }
        DaemonReply::Tools(rows) => rows.iter_mut().for_each(|row| shared(row.error.as_mut())),
        DaemonReply::Event(event) => shared(match &mut **event {
            ServerEvent::Failed { row } => row.outcome.as_mut().err(),
            ServerEvent::Lost { error, .. }
            | ServerEvent::RestartFailed { error, .. }
            | ServerEvent::GaveUp { error, .. } => Some(error),
            _ => None,
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::{ErrorCode, UnsetVariable},
        tool::ServerName,
    };

    #[test]
    fn a_variable_that_the_client_has_is_told() {
        let help = |inherited, here: &Env| {
            let mut told = RemoteError::new(ErrorCode::ServerExited, "x");
            told.server = Some(ServerName::new("one").unwrap());
            told.help = Some("export it".to_owned());
            told.unset_variable = Some(UnsetVariable::new("A_TOKEN", inherited));
            correct_help(&mut told, here);
            told.help.unwrap()
        };
        let (with, without) = (Env::new("/", [("A_TOKEN", "x")]), Env::new("/", [("A_TOKEN", "")]));
        assert_eq!(
            help(true, &with),
            "the daemon was started without A_TOKEN, which is set here: `toolcrib down`, then `toolcrib up -d`"
        );
        assert!(
            help(false, &with)
                .contains("set here: add `inherit_env = [\"A_TOKEN\"]` to `[servers.one]`, then ")
        );
        assert_eq!(help(true, &without), "export it, then `toolcrib down` and `toolcrib up -d`");
    }
}
