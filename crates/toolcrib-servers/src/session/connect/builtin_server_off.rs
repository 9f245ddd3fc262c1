//! In place of `builtin_server` in a build without the feature `builtin`: there are no built-in servers.

use std::path::Path;

use tokio_util::task::AbortOnDropHandle;

use super::{ConnectContext, failure::Failure};
use crate::process::Pipes;

pub(super) fn serve(
    (name, ..): (&str, &[String], &Path),
    _: &ConnectContext,
) -> Result<(Pipes, AbortOnDropHandle<()>), Failure> {
    let why = format!("the built-in server `{name}` is not part of this build");
    let help = "build toolcrib with the cargo feature `builtin`, or remove the server".to_owned();
    Err(Failure::spawn(why, Some(help)))
}
