//! The right to write the journal of one task, whichever store has it.

#[cfg(feature = "nats")]
use super::nats::NatsLease;
use super::{record::Entry, sqlite};
use crate::error::Result;

/// The right to write the journal of one task.
#[derive(Debug)]
pub(crate) enum Lease {
    /// This process owns the whole store.
    Sqlite(sqlite::Lease),
    /// Workers on other machines may take over.
    #[cfg(feature = "nats")]
    Nats(NatsLease),
}

impl From<sqlite::Lease> for Lease {
    fn from(lease: sqlite::Lease) -> Self {
        Self::Sqlite(lease)
    }
}

#[cfg(feature = "nats")]
impl From<NatsLease> for Lease {
    fn from(lease: NatsLease) -> Self {
        Self::Nats(lease)
    }
}

impl Lease {
    /// Appends a record; it is durable when this returns. Cancel safe: the record is written or it is not.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io); somebody else has taken over the task.
    pub(super) async fn append(&self, entry: Entry) -> Result<()> {
        match self {
            Self::Sqlite(lease) => lease.append(entry).await,
            #[cfg(feature = "nats")]
            Self::Nats(lease) => lease.append(entry).await,
        }
    }

    /// Whether something may be started outside.
    ///
    /// # Errors
    /// [`Error::Io`](toolcrib_core::Error::Io): somebody else may have taken over the task.
    #[cfg_attr(
        not(feature = "nats"),
        expect(clippy::unnecessary_wraps, reason = "other stores can lose a lease")
    )]
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Sqlite(_) => Ok(()),
            #[cfg(feature = "nats")]
            Self::Nats(lease) => lease.check(),
        }
    }
}
