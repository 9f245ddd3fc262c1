//! Fuzz target `stderr`: see `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcrib::fuzz::stderr(bytes));
