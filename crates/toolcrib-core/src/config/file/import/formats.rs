//! Formats of other tools' files, beside TOML.

mod jsonc;
mod yaml;

pub(super) use self::{jsonc::read as jsonc, yaml::read as yaml};
