//! Templates: Python processes that have imported what several servers share, and are forked for each of them. Knows no sessions
//! and no managers.
//!
//! Programs use the crate `toolcrib`. What is here is for the crates of toolcrib, and can change in any version.

#[doc(hidden)]
pub mod template;

use toolcrib_core::{background, bounded, config, duration, forking, package, record_folder, text, trace};
