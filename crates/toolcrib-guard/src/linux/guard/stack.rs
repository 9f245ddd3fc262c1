//! The stack of a guard, and of its server until it is there.

use std::{ffi::c_void, io, ptr};

use rustix::{
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
    param::page_size,
};

/// Bytes of both together. Only those that are used take memory.
const SIZE: usize = 512 << 10;

/// Memory whose lowest page nobody may touch: a stack that outgrew it would spoil what lies below.
pub(super) struct Stack(*mut c_void);

impl Stack {
    pub(super) fn new() -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        #[expect(unsafe_code, reason = "no safe way to map memory")]
        // SAFETY: a new mapping, where the kernel finds room.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), SIZE, access, MapFlags::PRIVATE) }?;
        let stack = Self(base);
        #[expect(unsafe_code, reason = "no safe way to protect memory")]
        // SAFETY: the first page of what was just mapped, and nothing else.
        unsafe { mprotect(base, page_size(), MprotectFlags::empty()) }?;
        Ok(stack)
    }

    /// Where the guard begins; it grows down.
    pub(super) fn top(&self) -> *mut c_void {
        self.0.wrapping_byte_add(SIZE)
    }

    /// Where the process begins that becomes the server, while the guard stands still far above.
    pub(super) fn middle(&self) -> *mut c_void {
        self.0.wrapping_byte_add(SIZE / 2)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "no safe way to unmap memory")]
        // SAFETY: mapped in `new`, and whoever stood on it has ended.
        let _ = unsafe { munmap(self.0, SIZE) };
    }
}
