//! The module `sending` of a program without the Cargo feature `otlp`: nothing is sent.

use toolcrib::Error;
use tracing_subscriber::layer::Identity;

use crate::cli::terminal::ui::Ui;

pub(crate) struct Sending;

#[expect(clippy::unused_self, reason = "as in the module that it replaces")]
impl Sending {
    #[expect(clippy::unnecessary_wraps, reason = "as in the module that it replaces")]
    pub(super) fn from_env() -> Result<Self, Error> {
        Ok(Self)
    }

    pub(super) fn layer(&self) -> Option<Identity> {
        None
    }

    pub(crate) fn end(self, _: &Ui) {}
}
