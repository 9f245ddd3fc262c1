//! In place of `builtin_server` in a build without the feature `builtin`: there are no built-in servers.

use std::path::Path;

use tokio_util::task::AbortOnDropHandle;

use super::ConnectContext;
use crate::process::Pipes;

pub(super) fn serve(
    (name, ..): (&str, &[String], &Path),
    _: &ConnectContext,
) -> Result<(Pipes, AbortOnDropHandle<()>), String> {
    Err(format!("the built-in server `{name}` is not part of this build (cargo feature `builtin`)"))
}
