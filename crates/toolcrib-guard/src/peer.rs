//! Who is at the other end of a local socket. Where that cannot be told, as elsewhere than on Linux, nobody is refused.

pub use crate::platform::{is_of_this_user, is_sandboxed};
