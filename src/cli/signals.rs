//! The signals that end a command: Ctrl-C, SIGTERM, SIGHUP.

use std::{
    future::Future,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::Poll,
    thread,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout_at,
};
use toolcrib::CancellationToken;

use super::terminal::ui::Ui;

/// The signal that ended the program.
#[derive(Clone, Copy)]
pub(super) enum Ended {
    Interrupt,
    Terminate,
    Hangup,
}

impl Ended {
    pub(super) fn code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    fn number(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate | Self::Hangup => 143,
        }
    }

    /// The signal in words, and the effect of a second one.
    fn words(self) -> &'static str {
        match self {
            Self::Interrupt => "(a second Ctrl-C kills everything at once)",
            Self::Terminate => "after SIGTERM (a second signal kills everything at once)",
            Self::Hangup => "after SIGHUP (a second signal kills everything at once)",
        }
    }
}

/// Runs `command`. The first signal cancels `cancel`, and the command ends in its own time; the second one
/// drops the command, which kills every process it owns.
pub(super) async fn until_killed<T>(
    mut command: impl Future<Output = T> + Unpin,
    signals: &Signals,
    cancel: &CancellationToken,
    ui: &Ui,
) -> Result<(T, Option<Ended>), Ended> {
    let mut incoming = Incoming::listen();
    let first = tokio::select! {
        outcome = &mut command => return Ok((outcome, None)),
        first = incoming.next() => first,
    };
    cancel.cancel();
    ui.status("Stopping", first.words());
    loop {
        signals.taken();
        tokio::select! {
            outcome = &mut command => return Ok((outcome, Some(first))),
            again = incoming.next() => {
                signals.taken();
                return Err(again);
            }
            // It is still being attended to.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

/// The signals that end a program.
struct Incoming([(Ended, Option<Signal>); 3]);

impl Incoming {
    fn listen() -> Self {
        let listen = |kind| signal(kind).ok();
        // `nohup` has it ignored: to listen would undo that.
        let hangup =
            (!toolcrib::cli_support::ignores_hangup()).then(|| listen(SignalKind::hangup())).flatten();
        Self([
            (Ended::Interrupt, listen(SignalKind::interrupt())),
            (Ended::Terminate, listen(SignalKind::terminate())),
            (Ended::Hangup, hangup),
        ])
    }

    async fn next(&mut self) -> Ended {
        std::future::poll_fn(|task| {
            let ready = |(ended, signal): &mut (Ended, Option<Signal>)| {
                let came = signal.as_mut().is_some_and(|signal| signal.poll_recv(task).is_ready());
                came.then_some(*ended)
            };
            self.0.iter_mut().find_map(ready).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// Sees to it that signals end the program at every moment. The one thread that takes them may be held up for longer
/// than anybody waits: by a file system that hangs, a terminal that takes no more, an input that takes very long. Then
/// the program ends at once, and the guards of its servers end these, as after SIGKILL.
#[derive(Clone)]
pub(super) struct Signals {
    began: Instant,
    /// When the thread has last taken a signal, or attended to one: milliseconds since `began`, and 1.
    taken: Arc<AtomicU64>,
}

/// How long a signal may wait to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the thread may be held up once it has taken one: it may have to write much.
const AT_THE_END: Duration = Duration::from_secs(30);
/// The watching thread may hear of a signal later than the one that takes it.
const SLACK: Duration = Duration::from_millis(500);

impl Signals {
    /// Watches from a thread of its own, until the program ends.
    pub(super) fn watch() -> Self {
        let signals = Self { began: Instant::now(), taken: Arc::default() };
        let watched = signals.clone();
        let work = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            if let Ok(runtime) = runtime {
                runtime.block_on(watched.end_in_time());
            }
        };
        // Without it signals are taken as soon as the work allows.
        drop(thread::Builder::new().name("toolcrib-signals".to_owned()).spawn(work));
        signals
    }

    #[expect(clippy::disallowed_methods, reason = "the guards of the servers end these, as after SIGKILL")]
    async fn end_in_time(self) {
        let mut incoming = Incoming::listen();
        let mut ended = incoming.next().await;
        let mut came = Instant::now();
        while let Some(until) = self.until(came) {
            if let Ok(again) = timeout_at(until.into(), incoming.next()).await
                && self.has_taken(came)
            {
                (ended, came) = (again, Instant::now());
            }
        }
        std::process::exit(ended.number().into());
    }

    /// The time until which the program may go on after a signal that came at `came`. `None`: that time is over.
    fn until(&self, came: Instant) -> Option<Instant> {
        let until = match self.has_taken(came) {
            true => self.last_taken() + AT_THE_END,
            false => came + PATIENCE,
        };
        (Instant::now() < until).then_some(until)
    }

    fn has_taken(&self, came: Instant) -> bool {
        self.taken.load(Relaxed) > 0 && self.last_taken() + SLACK >= came
    }

    fn last_taken(&self) -> Instant {
        self.began + Duration::from_millis(self.taken.load(Relaxed))
    }

    /// A signal was taken, or is attended to.
    fn taken(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.taken.store(now.saturating_add(1), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_waits_only_so_long_to_be_taken() {
        let signals = Signals { began: Instant::now(), taken: Arc::default() };
        let came = Instant::now();
        assert_eq!(signals.until(came), Some(came + PATIENCE));
        let ago = |time: Duration| Instant::now().checked_sub(time).unwrap();
        assert_eq!(signals.until(ago(PATIENCE)), None, "nobody has taken it");
        signals.taken();
        let until = signals.until(came).unwrap();
        assert!(until > came + PATIENCE && until <= Instant::now() + AT_THE_END + SLACK);
        let late = Signals { began: ago(AT_THE_END + PATIENCE), taken: Arc::new(1.into()) };
        assert_eq!(late.until(late.began), None, "it is not attended to any more");
        assert!(!late.has_taken(Instant::now()), "one that came later");
    }
}
