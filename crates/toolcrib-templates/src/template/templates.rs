//! The templates of one manager.

mod forecast;
mod planned;
mod starting;
mod status;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use tokio::sync::{Notify, Semaphore};
use toolcrib_guard::{Supervisor, TeardownScope, Template};

pub use self::planned::Planned;
use self::starting::Starting;
use super::{
    key::Key,
    pool::{Slot, Stage},
    program::CODE,
    proof::{Identities, Memory, Proofs},
    python::{Entry, PythonStart},
};
use crate::{
    background::Background,
    config::{Secrets, StdioConfig, TemplatePackages},
    forking::TemplateStatus,
};

/// How long a template may take to fork: a start that gets no answer is begun anew, the ordinary way.
pub const FORK_LIMIT: Duration = Duration::from_secs(2);
/// How many starts a template is asked for at the same time. It forks one after the other; guards and servers begin side by side.
const FORKS: usize = 8;
/// Templates for one program alone that one environment may have at the same time: each has what it imports for itself.
const MAX_PROGRAMS: usize = 8;
/// How long a start whose template has ended waits until that is noticed.
const NOTICE: Duration = Duration::from_millis(50);
/// How long the end of the manager waits for its templates.
const END: Duration = Duration::from_secs(1);

/// The templates of one manager. A cheap handle. They end with the last one, and by [`Templates::close`].
#[derive(Clone)]
pub struct Templates(Arc<Shared>);

struct Shared {
    supervisor: Supervisor,
    secrets: RwLock<Secrets>,
    proofs: Proofs,
    identities: Identities,
    /// The program of templates.
    code: &'static str,
    cells: Mutex<BTreeMap<Key, Cell>>,
    closed: AtomicBool,
}

/// The template of one key.
struct Cell {
    state: Arc<State>,
    /// Starts and watches the template. It owns nothing that owns this.
    work: Option<Background>,
}

/// The state of one key, and a call whenever it may have changed.
struct State {
    slot: Mutex<Slot<Template>>,
    changed: Notify,
    /// Forks at the same time.
    forking: Semaphore,
}

/// Counts something of one key, until it is dropped.
pub struct Counted {
    state: Arc<State>,
    count: fn(&mut Slot<Template>) -> &mut usize,
}

impl Counted {
    fn new(state: &Arc<State>, count: fn(&mut Slot<Template>) -> &mut usize) -> Self {
        *count(&mut state.slot()) += 1;
        Self { state: state.clone(), count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *(self.count)(&mut self.state.slot()) -= 1;
    }
}

/// Facts about a start that its [`StdioConfig`] does not have.
#[derive(Debug, Clone, Copy)]
pub struct StartFacts<'a> {
    /// A hash of the command line and the environment as they are configured, before variables are put in: what they stand for
    /// may be another thing for each task.
    pub configured: &'a str,
    /// It is started again and again: it belongs to a task or a client, or has spares.
    pub repeats: bool,
    /// It would need another template for each task.
    pub is_own: bool,
    /// Duration of an ordinary start of it, if it is known.
    pub takes: Option<Duration>,
}

impl<'a> StartFacts<'a> {
    /// Facts about a start of which nothing else is known.
    pub fn of(configured: &'a str) -> Self {
        Self { configured, repeats: false, is_own: false, takes: None }
    }
}

impl Templates {
    /// Keeps what is known of servers below `cache`; without a folder, as long as this lives. `secrets` are hidden and never handed to
    /// a template.
    pub fn new(supervisor: Supervisor, cache: Option<&Path>, secrets: Secrets) -> Self {
        Self::with_code(supervisor, cache, secrets, CODE)
    }

    fn with_code(supervisor: Supervisor, cache: Option<&Path>, secrets: Secrets, code: &'static str) -> Self {
        Self(Arc::new(Shared {
            supervisor,
            secrets: RwLock::new(secrets),
            proofs: Proofs::new(cache),
            identities: Identities::default(),
            code,
            cells: Mutex::default(),
            closed: AtomicBool::new(false),
        }))
    }

    /// Adds secrets: templates that may have one of them, or print it, end.
    pub fn learn(&self, more: &Secrets) {
        {
            let mut secrets = self.0.secrets.write().unwrap_or_else(PoisonError::into_inner);
            let is_known = secrets.knows(more);
            *secrets = secrets.and(more);
            if is_known {
                return;
            }
        }
        for cell in self.0.cells().values_mut() {
            cell.work = None;
            let mut slot = cell.state.slot();
            if matches!(slot.stage, Stage::Starting { .. } | Stage::Ready { .. }) {
                slot.stage = Stage::None;
            }
            drop(slot);
            cell.state.changed.notify_waiters();
        }
    }

    /// Tells of the servers that will be started. Looks at files.
    pub fn expect<'a>(&self, specs: impl IntoIterator<Item = (&'a StdioConfig, StartFacts<'a>)>) {
        for (spec, facts) in specs {
            if let Ok(planned) = self.examine(spec, facts)
                && planned.proof.permits()
            {
                let state = self.state(&planned.key);
                state.slot().expect(&planned.identity.key, &planned.start.entry, Instant::now());
            }
        }
    }

    /// Whether `spec` is a Python server that may have a template. Looks at one or two files.
    pub fn concerns(&self, spec: &StdioConfig) -> bool {
        let has_guards = || matches!(self.0.supervisor.scope(), TeardownScope::Guard { .. });
        spec.template != TemplatePackages::Never && has_guards() && PythonStart::of(spec).is_ok()
    }

    /// Whether `spec`, a start of what is `configured` with the values of a task, would need a template that no other task could use.
    /// Looks at files.
    pub fn is_own(&self, spec: &StdioConfig, configured: &StdioConfig) -> bool {
        let secrets = &self.0.secrets();
        let place = |spec: &StdioConfig| {
            let start = PythonStart::of(spec).ok()?;
            Some((Key::of(spec, &start, secrets).ok()?, start.entry))
        };
        spec != configured && place(spec) != place(configured)
    }

    /// How `spec`, as it is started after all (directly, with its caches), could be forked. Looks at files. `None`: it cannot be.
    pub fn plan(&self, spec: &StdioConfig, facts: StartFacts<'_>) -> Option<Planned> {
        self.examine(spec, facts).ok()
    }

    /// Plans a fork like [`Templates::plan`].
    ///
    /// # Errors
    /// Why it cannot be forked, in words for a person.
    pub(crate) fn examine(&self, spec: &StdioConfig, facts: StartFacts<'_>) -> Result<Planned, String> {
        if spec.template == TemplatePackages::Never {
            return Err("`template` is false".to_owned());
        }
        if let TeardownScope::Group { because } = self.0.supervisor.scope() {
            return Err(format!("there are no guards: {because}"));
        }
        let Shared { proofs, identities, .. } = &*self.0;
        let secrets = &self.0.secrets();
        let start = PythonStart::of(spec)?;
        let mut key = Key::of(spec, &start, secrets)?;
        if key.varies_by_task(&start.entry) {
            return Err("what it is forked from would be another template for each task".to_owned());
        }
        if facts.repeats && self.is_partial(&key, &start.entry) {
            key = key.of_program(&start.entry);
        }
        let identity = identities.of(spec, &start, facts.configured, secrets);
        let proof = proofs.of(&identity);
        let StartFacts { repeats, is_own, takes, .. } = facts;
        let templates = self.clone();
        let (spec, waited) = (spec.clone(), AtomicU64::new(0));
        Ok(Planned { templates, spec, start, key, identity, proof, repeats, is_own, takes, waited })
    }

    /// Whether servers of this program import more than the template has that is for all programs, and get one of their own. May read a
    /// file.
    fn is_partial(&self, key: &Key, entry: &Entry) -> bool {
        let is_partial = |memory: &Memory| memory.partial.contains(entry);
        let own = key.of_program(entry);
        {
            let cells = self.0.cells();
            let live = |cell: &Cell| !matches!(cell.state.slot().stage, Stage::None | Stage::Failed { .. });
            let others = cells.iter().filter(|(other, cell)| other.is_program_of(key) && live(cell));
            if !cells.contains_key(&own) && others.count() >= MAX_PROGRAMS {
                return false;
            }
            if let Some(cell) = cells.get(key) {
                return is_partial(&cell.state.slot().memory);
            }
        }
        is_partial(&self.0.proofs.memory_of(&key.hash()))
    }

    /// The templates of this manager, those that have ended included.
    pub fn status(&self) -> Vec<TemplateStatus> {
        let cells = self.0.cells();
        let now = Instant::now();
        cells.iter().map(|(key, cell)| status::status(key, &cell.state.slot(), now)).collect()
    }

    /// Ends all templates, with or without a runtime. Servers that were forked go on; later starts are ordinary ones.
    pub fn close(&self) {
        drop(self.take());
    }

    /// Ends all templates like [`Templates::close`], and waits a short time until their processes are gone.
    pub async fn end(&self) {
        let pids = self.take();
        let gone = async {
            for pid in pids.into_iter().filter_map(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
                while rustix::process::test_kill_process(pid).is_ok() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        // What is left then ends with the zygote.
        let _ = tokio::time::timeout(END, gone).await;
    }

    fn take(&self) -> Vec<u32> {
        self.0.closed.store(true, SeqCst);
        let cells = std::mem::take(&mut *self.0.cells());
        let mut pids = Vec::new();
        for Cell { state, work } in cells.into_values() {
            drop(work);
            let stage = std::mem::replace(&mut state.slot().stage, Stage::None);
            state.changed.notify_waiters();
            if let Stage::Ready { template, .. } = stage {
                pids.push(template.pid());
            }
        }
        pids
    }

    fn state(&self, key: &Key) -> Arc<State> {
        if let Some(cell) = self.0.cells().get(key) {
            return cell.state.clone();
        }
        // Read without the lock.
        let memory = self.0.proofs.memory_of(&key.hash());
        let mut cells = self.0.cells();
        // A state is only handed out with this lock. One that nobody has, and that nothing is known of, is not needed any more.
        cells.retain(|_, Cell { state, .. }| Arc::strong_count(state) > 1 || !state.slot().is_blank());
        let cell = cells.entry(key.clone()).or_insert_with(|| Cell {
            state: Arc::new(State {
                slot: Mutex::new(Slot::new(memory, Instant::now())),
                changed: Notify::new(),
                forking: Semaphore::new(FORKS),
            }),
            work: None,
        });
        cell.state.clone()
    }

    /// Starts a template in the background. Does nothing if there is one.
    fn start(&self, key: &Key, state: &Arc<State>) {
        let Shared { supervisor, proofs, code, .. } = &*self.0;
        // Of a start that began before one of its words became secret.
        if !key.is_open(&self.0.secrets()) {
            return;
        }
        let mut cells = self.0.cells();
        // Looked at with the lock on the cells: after `close` none is begun.
        let Some(cell) = cells.get_mut(key).filter(|cell| Arc::ptr_eq(&cell.state, state)) else { return };
        {
            let slot = &mut *state.slot();
            if !slot.wants_template() {
                return;
            }
            slot.covered = slot.entries.keys().cloned().collect();
            slot.stage = Stage::Starting { since: Instant::now(), is_stalled: false };
        }
        let starting = Starting {
            supervisor: supervisor.clone(),
            secrets: self.0.secrets(),
            proofs: proofs.clone(),
            key: key.clone(),
            code,
            state: state.clone(),
        };
        cell.work = Some(Background::spawn(starting.run()));
    }
}

impl Shared {
    fn secrets(&self) -> Secrets {
        self.secrets.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn cells(&self) -> MutexGuard<'_, BTreeMap<Key, Cell>> {
        self.cells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Waiters hold a handle, so there are none.
        self.cells().clear();
    }
}

impl State {
    /// Waits until it is noticed that `template` has ended, a short time at most.
    async fn until_noticed(&self, template: &Arc<Template>) {
        let noticed = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if !self.slot().is_ready(template) {
                    return;
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(NOTICE, noticed).await;
    }

    fn slot(&self) -> MutexGuard<'_, Slot<Template>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
