//! Files below `/proc` that another process decides the length of.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Enough for what is looked for in them. With prctl(2) a process can make its own as long as its memory.
const MAX: u64 = 256 << 10;

/// The first 256 KiB of a process's environment or command line.
pub(super) fn beginning(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_file_is_read() {
        assert_eq!(beginning("/dev/zero").unwrap().len() as u64, MAX);
        assert_eq!(beginning("/proc/self/cmdline").unwrap(), std::fs::read("/proc/self/cmdline").unwrap());
    }
}
