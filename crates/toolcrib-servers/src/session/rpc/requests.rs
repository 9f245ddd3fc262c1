//! The requests of one connection that wait for their answers, by their ids.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use rmcp::model::ErrorData;
use serde_json::value::RawValue;
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use crate::{
    process::{LinePosition, WriteError},
    session::{
        progress::{Progress, ProgressListener},
        result::reply::CallLimits,
    },
    tool::ToolResult,
};

/// Ids are from 1 on, since some servers take 0 for none, to the last one of 32 bits, since some read no more.
pub(in crate::session) const FIRST: i64 = 1;
const LAST: i64 = i32::MAX as i64;
/// Answered requests whose progress is reported on: they go on as tasks.
const MAX_TASKS: usize = 1000;

/// The answer of a server to a request.
pub(in crate::session) enum RpcAnswer {
    /// The result of a tool call that is text.
    Plain(ToolResult),
    /// Any result, as it was written.
    Result(Box<RawValue>),
    /// It refused, in the protocol's own way.
    Refused(ErrorData),
}

/// How far a request has come.
#[derive(Default)]
pub(in crate::session) struct RequestProgress {
    /// When its progress was reported last, in microseconds since the connection began; 0 if never.
    progress: AtomicU64,
    /// Position of its line in the stream to the server, over stdio.
    pub(in crate::session) position: LinePosition,
}

/// The requests of one connection.
pub(in crate::session) struct RequestTable {
    began: Instant,
    // Held for a look or a change, never across an await.
    requests: Mutex<Requests>,
    /// Number of open requests whose answers are wanted as they are written.
    raw: AtomicUsize,
}

struct Requests {
    open: HashMap<i64, Waiting>,
    /// Listeners for the progress of answered requests that go on as tasks, the oldest first.
    tasks: VecDeque<(i64, Listener)>,
    /// Requests that were sent, given up and not answered yet.
    owed: u64,
    next: i64,
    /// All ids were used: from here on each one may be that of an old request.
    all_used: bool,
    ended: bool,
}

/// A request that waits for its answer.
pub(in crate::session) struct Waiting {
    pub(in crate::session) answer: oneshot::Sender<Result<RpcAnswer, WriteError>>,
    pub(in crate::session) course: Arc<RequestProgress>,
    /// Hears of its progress.
    pub(in crate::session) listener: Option<Listener>,
    pub(in crate::session) form: AnswerForm,
    /// The sender's own number of a forwarded request.
    pub(in crate::session) exchange: Option<u64>,
}

/// A listener for the progress of a request.
#[derive(Clone)]
pub(in crate::session) enum Listener {
    Decoded(ProgressListener),
    /// Gets the parameters of the notification as they were written.
    Raw(RawListener),
}

/// Gets each report in order, as it was written. It runs in the task that reads the server's messages, so it must not
/// block.
pub type RawListener = Arc<dyn Fn(&RawValue) + Send + Sync>;

/// The form in which an answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::session) enum AnswerForm {
    /// Decoded where that is quick.
    Decoded,
    /// The result as it was written, cut to the limit of tool results.
    RawToolResult,
    /// The answer as it was written.
    Raw,
}

/// How an answer relates to the requests of its connection.
#[derive(Debug, PartialEq)]
pub(in crate::session) enum AnswerKind {
    /// It was waited for.
    Expected,
    /// Its request was given up meanwhile.
    Late,
    /// A second answer, or one to a request that never was.
    Unasked,
}

impl RequestTable {
    pub(in crate::session) fn new() -> Self {
        let (open, tasks, owed, all_used, ended) = Default::default();
        let requests = Requests { open, tasks, owed, next: FIRST, all_used, ended };
        Self { began: Instant::now(), requests: Mutex::new(requests), raw: AtomicUsize::new(0) }
    }

    /// Whether somebody waits for an answer as it is written.
    pub(in crate::session) fn wants_raw(&self) -> bool {
        self.raw.load(Relaxed) > 0
    }

    /// The id of a new request. `None`: the connection has ended.
    pub(in crate::session) fn open(&self, waiting: Waiting) -> Option<i64> {
        let mut requests = self.requests();
        if requests.ended {
            return None;
        }
        loop {
            let id = requests.next;
            requests.next = if id == LAST { FIRST } else { id + 1 };
            requests.all_used |= id == LAST;
            if let Entry::Vacant(place) = requests.open.entry(id) {
                self.raw.fetch_add(usize::from(waiting.form != AnswerForm::Decoded), Relaxed);
                place.insert(waiting);
                return Some(id);
            }
        }
    }

    /// Gives a request its answer; says whether it was waited for.
    pub(in crate::session) fn answer(&self, id: i64, answer: Result<RpcAnswer, WriteError>) -> AnswerKind {
        let mut requests = self.requests();
        match self.take(&mut requests, id) {
            Some(waiting) => {
                drop(requests);
                let _ = waiting.answer.send(answer);
                AnswerKind::Expected
            }
            None if requests.owed > 0 && requests.has_used(id) => {
                requests.owed -= 1;
                AnswerKind::Late
            }
            None => AnswerKind::Unasked,
        }
    }

    /// The form in which the answer to a request is wanted. `None`: nobody waits for it.
    pub(in crate::session) fn form(&self, id: i64) -> Option<AnswerForm> {
        self.requests().open.get(&id).map(|waiting| waiting.form)
    }

    /// The number of a forwarded request. `None`: it is none, or has its answer.
    pub(in crate::session) fn exchange(&self, id: i64) -> Option<u64> {
        self.requests().open.get(&id)?.exchange
    }

    /// Reports on the progress of a request go on after its answer: it goes on as a task.
    pub(in crate::session) fn keep_listener(&self, id: i64) {
        let mut requests = self.requests();
        let Some(listener) = requests.open.get(&id).and_then(|waiting| waiting.listener.clone()) else {
            return;
        };
        if requests.tasks.len() >= MAX_TASKS {
            requests.tasks.pop_front();
        }
        requests.tasks.push_back((id, listener));
    }

    /// Forgets a request without an answer; says whether it had none. Of one that was `sent`, an answer may come.
    pub(in crate::session) fn give_up(&self, id: i64, sent: bool) -> bool {
        let mut requests = self.requests();
        let open = self.take(&mut requests, id).is_some();
        requests.owed += u64::from(open && sent);
        open
    }

    /// Records a sign of life of a request, and passes its progress on to listeners: the parameters of the
    /// notification.
    pub(in crate::session) fn progress(&self, id: i64, params: &RawValue) {
        let listener = {
            let requests = self.requests();
            match requests.open.get(&id) {
                Some(waiting) => {
                    let now = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
                    waiting.course.progress.store(now, Relaxed);
                    waiting.listener.clone()
                }
                None => requests.tasks.iter().find(|(task, _)| *task == id).map(|(_, kept)| kept.clone()),
            }
        };
        match listener {
            Some(Listener::Raw(listener)) => listener(params),
            // It is a sign of life in any case.
            Some(Listener::Decoded(listener)) => {
                if let Some(report) = Progress::read(params) {
                    listener(report);
                }
            }
            None => {}
        }
    }

    /// Waits for what comes of a request, up to its limits: progress begins the time anew, up to the ceiling. The error
    /// is the limit that is over.
    pub(in crate::session) async fn within_limits<T>(
        &self,
        outcome: impl Future<Output = T>,
        course: &RequestProgress,
        call_limits: CallLimits<'_>,
    ) -> Result<T, Duration> {
        let mut outcome = pin!(outcome);
        let began = Instant::now();
        let mut deadline = began + call_limits.limit;
        let mut notice = call_limits.notice.map(|notice| began + notice.every);
        loop {
            let next = notice.map_or(deadline, |notice| notice.min(deadline));
            if let Ok(outcome) = timeout_at(next, &mut outcome).await {
                return Ok(outcome);
            }
            if next < deadline {
                notice = call_limits.notice.map(|notice| {
                    (notice.tell)(began.elapsed());
                    next + notice.every
                });
                continue;
            }
            let heard = self.began + Duration::from_micros(course.progress.load(Relaxed));
            let next = (heard + call_limits.limit).min(began + call_limits.ceiling);
            if next <= deadline {
                let ceiling = deadline == began + call_limits.ceiling;
                return Err(if ceiling { call_limits.ceiling } else { call_limits.limit });
            }
            deadline = next;
        }
    }

    /// The connection has ended: all waiting callers get an error.
    pub(in crate::session) fn end(&self) {
        let mut requests = self.requests();
        requests.ended = true;
        requests.open.clear();
        requests.tasks.clear();
        self.raw.store(0, Relaxed);
    }

    /// Whether requests wait for their answers.
    pub(in crate::session) fn is_busy(&self) -> bool {
        !self.requests().open.is_empty()
    }

    /// Whether the connection has ended.
    pub(in crate::session) fn is_ended(&self) -> bool {
        self.requests().ended
    }

    fn take(&self, requests: &mut Requests, id: i64) -> Option<Waiting> {
        let waiting = requests.open.remove(&id)?;
        self.raw.fetch_sub(usize::from(waiting.form != AnswerForm::Decoded), Relaxed);
        Some(waiting)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Requests {
    /// Whether there was a request with that id.
    fn has_used(&self, id: i64) -> bool {
        (FIRST..=LAST).contains(&id) && (self.all_used || id < self.next)
    }
}
