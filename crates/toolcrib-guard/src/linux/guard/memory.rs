//! An allocator for unit tests, which ends a guard that allocates while it shares the memory of its zygote.
//!
//! The C library uses no locks in a process with one thread. Two guards that allocate at once would corrupt the shared
//! heap.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI32, Ordering},
};

use rustix::process::getpid;

/// The process that may use the heap; zero if any may.
static OWNER: AtomicI32 = AtomicI32::new(0);

#[global_allocator]
static HEAP: Heap = Heap;

struct Heap;

/// Lets only this process allocate from here on.
pub(super) fn is_ours() {
    OWNER.store(getpid().as_raw_pid(), Ordering::Relaxed);
}

fn check() {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner != 0 && owner != getpid().as_raw_pid() {
        std::process::abort();
    }
}

#[expect(unsafe_code, reason = "an allocator")]
// SAFETY: calls the system's allocator after a check of the process id.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check();
        // SAFETY: as promised to us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        check();
        // SAFETY: as promised to us.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check();
        // SAFETY: as promised to us.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
