//! Sets `cfg(guarded)` where guards are possible, as crates/toolcrib-guard/build.rs does.

use std::env::var;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(guarded)");
    let is_linux = var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if is_linux && var("CARGO_FEATURE_GUARD").is_ok() {
        println!("cargo::rustc-cfg=guarded");
    }
}
