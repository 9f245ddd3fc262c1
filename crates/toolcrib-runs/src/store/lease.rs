//! The right to write the journal of one task, whichever store has it.

use std::fmt::Debug;

use futures_util::future::BoxFuture;

use super::record::Entry;
use crate::error::Result;

/// The right to write the journal of one task.
pub trait TaskLease: Debug + Send + Sync {
    /// Appends a record; it is durable when this returns. Cancel safe: the record is written or it is not.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io); somebody else has taken over the task.
    fn append(&self, entry: Entry) -> BoxFuture<'_, Result<()>>;

    /// Whether something may be started outside.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io): somebody else may have taken over the task.
    fn check(&self) -> Result<()>;
}
