//! Fuzz target `leaves`: see `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcrib::fuzz::leaves(bytes));
