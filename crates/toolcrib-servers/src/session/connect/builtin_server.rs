//! Serves a built-in server in memory.

use std::path::Path;

use tokio_util::task::AbortOnDropHandle;

use super::{ConnectContext, failure::Failure, in_memory};
use crate::{
    builtin::{Builtin, Site},
    process::Pipes,
};

/// The pipes to a server that runs in a task, and the task.
///
/// # Errors
/// The argument that is wrong.
pub(super) fn serve(
    (name, args, base): (&str, &[String], &Path),
    context: &ConnectContext,
) -> Result<(Pipes, AbortOnDropHandle<()>), Failure> {
    let site = Site { base, http: &context.http, extractor: context.extractor.clone(), variable: |_| None };
    let builtin = Builtin::parse(name, args, &site).map_err(|why| Failure::spawn(why, None))?;
    Ok(in_memory::connect(|stream| builtin.serve(stream)))
}
