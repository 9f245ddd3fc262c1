//! Fuzz target `request`: see `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcrib::fuzz::request(bytes));
