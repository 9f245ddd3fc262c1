//! Rules for the sources of this project.

mod names;
mod skipped;
mod tidy;
