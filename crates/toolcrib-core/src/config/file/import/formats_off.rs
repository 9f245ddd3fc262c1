//! The formats of a build without the feature `import`, which reads TOML alone.

pub(super) use jsonc as yaml;

use super::{Node, Result, SourceLocation};

pub(super) fn jsonc(_: &str, origin: &SourceLocation) -> Result<Node> {
    let what = "cannot be imported: this build reads no JSON and no YAML".to_owned();
    let help = "build toolcrib with the cargo feature `import`".to_owned();
    Err(origin.error(1, None, what, Some(help)))
}
