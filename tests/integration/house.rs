//! Rules for the sources of this project.

mod skipped;
mod tidy;
