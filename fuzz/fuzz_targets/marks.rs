//! Fuzz target `marks`: see `fuzz/README.md`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcrib_guard::marks::fuzz_mark(bytes));
