//! Serves a built-in server in memory.

use std::path::Path;

use tokio_util::task::AbortOnDropHandle;

use super::{ConnectContext, failure::Failure};
use crate::{
    builtin::{Builtin, Site},
    process::{LineReader, LineWriter, Pipes},
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
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    #[expect(clippy::disallowed_methods, reason = "the connection holds the handle that aborts it")]
    let task = AbortOnDropHandle::new(tokio::spawn(builtin.serve(theirs)));
    let (read, write) = tokio::io::split(ours);
    Ok((Pipes { reader: LineReader::new(read), writer: LineWriter::new(write) }, task))
}
