//! The locks of [`super::slot`]: those of the standard library. The model of the restart protocol has others.

pub(super) use std::sync::{Mutex, MutexGuard};

/// A panic with the lock held leaves a complete state: each change is one assignment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
