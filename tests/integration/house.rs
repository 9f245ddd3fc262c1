//! Rules for the sources of this project.

mod tidy;
