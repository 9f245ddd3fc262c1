//! In unit tests: ends a guard that asks for memory while it shares that of its zygote.
//!
//! The C library takes a process with one thread to be alone with its heap. Two guards that use it at once would
//! spoil it for all of them.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI32, Ordering},
};

use rustix::process::getpid;

/// The process whose heap this is; zero where everybody has their own.
static OWNER: AtomicI32 = AtomicI32::new(0);

#[global_allocator]
static HEAP: Heap = Heap;

struct Heap;

/// From here on the heap is for this process alone.
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
// SAFETY: the system's allocator, but for a look at who asks.
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
