//! The soft limit of open files: raised for this process, and for what it starts as it was.

#[cfg(target_os = "linux")]
use std::sync::OnceLock;

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// The limit before it was raised.
#[cfg(target_os = "linux")]
static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit of open files to the hard one, for a program that has many connections. The processes that this crate
/// starts get the one before: some use select(2), which knows 1024 files.
///
/// For the beginning of `main`. The library does not call it: the limit is the program's own. Only on Linux.
pub fn raise_file_limit() {
    #[cfg(target_os = "linux")]
    {
        let before = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: before.maximum, maximum: before.maximum };
        if before.current != before.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
            let _ = BEFORE.set(before);
        }
    }
}

/// Gives a child the limit from before, which has inherited the raised one.
#[cfg(target_os = "linux")]
pub(crate) fn reset_of(child: Option<u32>) {
    let child = child.and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let (Some(before), Some(child)) = (BEFORE.get(), child) {
        // One that has ended needs none.
        let _ = prlimit(Some(child), Resource::Nofile, Rlimit { ..*before });
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn reset_of(_: Option<u32>) {}

/// The limit from before, until this is dropped: for a child that raises it itself.
pub(crate) struct Lowered {
    #[cfg(target_os = "linux")]
    raised: Option<Rlimit>,
}

impl Lowered {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            raised: BEFORE.get().and_then(|before| {
                let raised = getrlimit(Resource::Nofile);
                setrlimit(Resource::Nofile, Rlimit { ..*before }).ok().map(|()| raised)
            }),
        }
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(raised) = self.raised.take() {
            let _ = setrlimit(Resource::Nofile, raised);
        }
    }
}
