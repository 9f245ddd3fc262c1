//! Servers that are forked from a template, in a Python environment of the test's own.

mod faults;
mod isolation;
