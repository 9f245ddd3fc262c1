//! Background work of the manager.

pub(super) use crate::background::Background;
