//! The store in one SQLite file, for runs on one machine.
//!
//! One thread owns the connection. It takes what was asked for meanwhile into one transaction, so that a hundred tasks
//! share each write to the disk. `synchronous=FULL`: a power cut loses nothing that was acknowledged. Not for network
//! file systems, whose locks cannot be relied on.

mod read;

use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, mpsc},
    thread,
    time::Duration,
};

use futures_util::future::BoxFuture;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior, config::DbConfig, params,
};
use rustix::fs::{FlockOperation, flock};
use tokio::{sync::oneshot, time::timeout};

use self::read::{ended, ended_as, journal_of, spending};
use super::{
    history::History,
    lease::TaskLease,
    record::{Entry, Record},
    spending::{Spending, SpentFor},
};
use crate::{
    cancel::CancellationToken,
    error::{self, Error, RemoteError, Result},
    run_files::private,
    task::Outcome,
};

/// Name of the file in the folder of a run.
pub const FILE: &str = "journal.db";

/// Version of the file; no other one is read.
const VERSION: u32 = 1;

/// How long [`RunStore::close`] waits. A file that is not closed is whole too, with the ones beside it.
const CLOSING: Duration = Duration::from_secs(2);

/// So many requests share a transaction at most.
const GROUP: usize = 256;

const SCHEMA: &str = "
create table if not exists task(
  id text primary key, position integer not null, digest text not null) without rowid;
create table if not exists journal(
  task text not null, position integer not null, entry text not null, primary key(task, position)) without rowid;
";

/// A request to the thread of the store: it is carried out in a transaction, and leaves its answer for when that is on
/// the disk.
type Job = Box<dyn FnOnce(&Transaction<'_>, &mut Vec<Answer>) -> rusqlite::Result<()> + Send>;
/// Answers a request: whether it is on the disk.
type Answer = Box<dyn FnOnce(bool) + Send>;

/// The store of one run. Clones are the same store; the file is closed and its lock given back when the last one and
/// the last lease are dropped.
#[derive(Clone, Debug)]
pub struct RunStore {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// Why nothing is written any more.
    broken: OnceLock<rusqlite::Error>,
    /// Ends the run then.
    stop: CancellationToken,
    /// Cancelled once the file is closed.
    closed: CancellationToken,
}

/// How a store is opened.
pub struct StoreSetup<'a> {
    /// Id and digest of each task, in order. The file holds no text of a task: that may have secrets.
    pub tasks: &'a mut dyn Iterator<Item = Result<(String, String)>>,
    /// Whether records outlive a power cut, and not only the end of this process.
    pub synced: bool,
    /// Cancelled when the store cannot be written any more.
    pub stop: CancellationToken,
    /// Whether a task that ended with this status is taken up again.
    pub goes_on: &'a dyn Fn(&str) -> bool,
    /// Function that tells what a step took, for [`OpenedStore::spent`].
    pub spent: SpentFor<'a>,
}

/// A store that was opened, and what it said.
pub struct OpenedStore {
    pub store: RunStore,
    /// The tasks that have ended, with the status of each.
    pub ended: HashMap<String, String>,
    /// Amounts that the other tasks have spent, and those that are taken up again.
    pub spent: Spending,
}

impl RunStore {
    /// Opens the store of the run in `folder`, and makes it where it is missing. Tasks that it does not have are added.
    /// Blocks while it reads the file.
    ///
    /// # Errors
    /// [`Error::Input`] when another process works on the run, the file is of another version, or it has another
    /// task of that id; [`Error::Io`].
    pub fn open(folder: &Path, setup: StoreSetup<'_>) -> Result<OpenedStore> {
        let lock = lock(folder)?;
        let path = folder.join(FILE);
        let mut connection = open(&path, setup.synced)?;
        let broken = |error| failed("write", &path, Some(&error));
        let mut unread = None;
        let mut tasks = setup.tasks.map_while(|task| task.map_err(|error| unread = Some(error)).ok());
        let changed = submit(&mut connection, &mut tasks).map_err(broken)?;
        if let Some(error) = unread {
            return Err(error);
        }
        if let Some(changed) = changed {
            return Err(Error::input(
                format!("the task `{changed}` is not the one that the run in {} has", folder.display()),
                Some("begin a new run with --fresh".to_owned()),
            ));
        }
        let unread = |error| failed("read", &path, Some(&error));
        let ended = ended(&connection).map_err(unread)?;
        let begun = |task: &str| match ended.get(task) {
            None => Some(false),
            Some(status) => (setup.goes_on)(status).then_some(true),
        };
        let spent = spending(&connection, &begun, setup.spent).map_err(unread)?;
        let shared = Arc::new(Shared {
            path,
            broken: OnceLock::new(),
            stop: setup.stop,
            closed: CancellationToken::new(),
        });
        let (jobs, received) = mpsc::channel();
        let of_thread = shared.clone();
        let thread = thread::Builder::new().name("toolcrib-journal".into()).spawn(move || {
            work(connection, &received, &of_thread);
            // Not before the connection is closed.
            drop(lock);
            of_thread.closed.cancel();
        });
        thread.map_err(|error| Error::io("cannot start the thread of the journal", error))?;
        Ok(OpenedStore { store: Self { jobs, shared }, ended, spent })
    }

    /// Closes the file, so that it is whole without those beside it. Waits a moment for what still holds the store.
    pub async fn close(self) {
        let closed = self.shared.closed.clone();
        drop(self);
        let _ = timeout(CLOSING, closed.cancelled()).await;
    }

    /// Why nothing is written any more.
    pub fn failure(&self) -> Option<Error> {
        self.shared.broken.get().map(|error| failed("write", &self.shared.path, Some(error)))
    }

    /// Carries out `job`; what it did is on the disk when this returns.
    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let answer = self.send(job)?;
        answer.await.map_err(|_| self.closed())
    }

    /// Sends a job like [`RunStore::run`]; jobs are carried out in the order of the calls of this function.
    fn send<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<T>> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |transaction, answers| {
            let (value, outcome) = match job(transaction) {
                Ok(value) => (Some(value), Ok(())),
                Err(error) => (None, Err(error)),
            };
            answers.push(Box::new(move |written| {
                if let (Some(value), true) = (value, written) {
                    // The caller may have gone.
                    let _ = sender.send(value);
                }
            }));
            outcome
        });
        self.jobs.send(job).map_err(|_| self.closed())?;
        Ok(receiver)
    }

    fn closed(&self) -> Error {
        self.failure().unwrap_or_else(|| failed("write", &self.shared.path, None))
    }

    /// Limits the pages of the database: with more of them the disk counts as full.
    #[cfg(test)]
    pub(super) async fn limit_pages(&self, pages: u32) {
        let limit = move |store: &Transaction<'_>| store.pragma_update(None, "max_page_count", pages);
        self.run(limit).await.unwrap();
    }

    /// Takes over a task and reads its journal. Owners before this one are refused from now on. `retry`: if it has
    /// errored, the requests that ended it are made again.
    ///
    /// # Errors
    /// [`Error::Io`]: there is no such task, or the journal cannot be read or written.
    pub(crate) async fn claim(&self, task: &str, retry: bool) -> Result<(Lease, History)> {
        let id = task.to_owned();
        let claimed = self.run(move |store| {
            let mut entries = journal_of(store, &id)?;
            if let Some(last) = entries.last() {
                let retry = retry && ended_as(last).is_some_and(|status| status == Outcome::Errored.name());
                let claim =
                    line(&Entry::now(Record::Claim { lease: format!("{:032x}", fastrand::u128(..)), retry }));
                let mut append = store.prepare_cached("insert into journal values(?, ?, ?)")?;
                append.execute(params![id, count(entries.len()), claim])?;
                entries.push(claim);
            }
            Ok(entries)
        });
        let lines = claimed.await?;
        let next = lines.len();
        let entries: Result<Vec<Entry>, _> = lines.iter().map(|line| serde_json::from_str(line)).collect();
        let entries = entries.map_err(|error| {
            Error::io(
                format!("cannot read the journal of `{task}` in {}", self.shared.path.display()),
                error.into(),
            )
        })?;
        if entries.is_empty() {
            let missing = io::Error::new(io::ErrorKind::NotFound, "it is not in the store");
            return Err(Error::io(format!("cannot take the task `{task}`"), missing));
        }
        let lease = Lease { store: self.clone(), task: task.to_owned(), next: Mutex::new(next) };
        Ok((lease, History::of(entries)))
    }
}

/// The right to write the journal of one task.
#[derive(Debug)]
pub(crate) struct Lease {
    store: RunStore,
    task: String,
    // Std mutex: held while a request is handed over, so that records are written in the order of their positions.
    next: Mutex<usize>,
}

impl TaskLease for Lease {
    fn append(&self, entry: Entry) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let (id, line) = (self.task.clone(), line(&entry));
            let answer = {
                let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
                let position = count(*next);
                *next += 1;
                self.store.send(move |store| {
                    // The claim of another owner has this position, or there is a gap before it after the store was
                    // exchanged for an older one.
                    let mut append = store.prepare_cached(
                        "insert into journal select ?1, ?2, ?3
                           where exists(select 1 from journal where task = ?1 and position = ?2 - 1)
                         on conflict do nothing",
                    )?;
                    append.execute(params![id, position, line])
                })?
            };
            match answer.await.map_err(|_| self.store.closed())? {
                1 => Ok(()),
                _ => Err(Error::io(
                    format!("cannot write the journal of `{}`", self.task),
                    io::Error::other("another process has taken over the task"),
                )),
            }
        })
    }

    fn check(&self) -> Result<()> {
        // This process owns the whole store.
        Ok(())
    }
}

/// Carries out what is asked for, until nobody can ask any more.
fn work(mut connection: Connection, jobs: &mpsc::Receiver<Job>, shared: &Shared) {
    while let Ok(first) = jobs.recv() {
        let mut answers = Vec::new();
        let written = match write(&mut connection, first, jobs, &mut answers) {
            Ok(()) => true,
            Err(error) => {
                // Set before the callers get their answers: they read it, and so do all later ones.
                let _ = shared.broken.set(error);
                shared.stop.cancel();
                false
            }
        };
        for answer in answers {
            answer(written);
        }
        if !written {
            return;
        }
    }
}

fn write(
    connection: &mut Connection,
    first: Job,
    jobs: &mpsc::Receiver<Job>,
    answers: &mut Vec<Answer>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    first(&transaction, answers)?;
    while answers.len() < GROUP
        && let Ok(job) = jobs.try_recv()
    {
        job(&transaction, answers)?;
    }
    transaction.commit()
}

/// Adds the tasks that are not there yet. The id of one that is another task there: then none is added.
fn submit(
    connection: &mut Connection,
    tasks: &mut dyn Iterator<Item = (String, String)>,
) -> rusqlite::Result<Option<String>> {
    let store = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    {
        let mut add = store.prepare("insert into task values(?, ?, ?) on conflict do nothing")?;
        let mut begin = store.prepare("insert into journal values(?, 0, ?)")?;
        let mut digest_of = store.prepare("select digest from task where id = ?")?;
        for (position, (id, digest)) in (0_i64..).zip(tasks) {
            if add.execute(params![id, position, digest])? == 1 {
                begin.execute(params![id, line(&Entry::now(Record::Submit { task: None }))])?;
            } else if digest_of.query_row([&*id], |row| row.get::<_, String>(0))? != digest {
                return Ok(Some(id));
            }
        }
    }
    store.commit()?;
    Ok(None)
}

fn open(path: &Path, synced: bool) -> Result<Connection> {
    let open = || {
        // Before SQLite makes it with the rights of the umask.
        private::append(path).map_err(Opening::File)?;
        let connection = connect(path)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", if synced { "full" } else { "normal" })?;
        let synchronous: u32 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        let version: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if synced && synchronous != 2 {
            return Err(Opening::File(io::Error::other("SQLite does not write through to the disk")));
        }
        match version {
            0 => {
                connection.execute_batch(SCHEMA)?;
                connection.pragma_update(None, "user_version", VERSION)?;
            }
            VERSION => {}
            other => {
                let what = format!("it has version {other}, and this program knows version {VERSION}");
                return Err(Opening::File(io::Error::new(io::ErrorKind::Unsupported, what)));
            }
        }
        Ok(connection)
    };
    open().map_err(|error| match error {
        Opening::File(error) => Error::io(format!("cannot open the journal {}", path.display()), error),
        Opening::Database(error) => failed("open", path, Some(&error)),
    })
}

/// The folder of a run may come from somebody else: neither its links nor its code are followed.
fn connect(path: &Path) -> Result<Connection, Opening> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // SQLite refuses a link wherever it is in the path.
    let real = fs::canonicalize(folder).map_err(Opening::File)?.join(path.file_name().unwrap_or_default());
    let connection =
        Connection::open_with_flags(real, OpenFlags::default() | OpenFlags::SQLITE_OPEN_NOFOLLOW)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let own = Connection::open_in_memory()?;
    own.execute_batch(SCHEMA)?;
    let own = objects(&own)?;
    if let Some((kind, name, _)) = objects(&connection)?.into_iter().find(|object| !own.contains(object)) {
        let what = format!("it has a {kind} `{name}` that this program has not made");
        return Err(Opening::File(io::Error::new(io::ErrorKind::InvalidData, what)));
    }
    Ok(connection)
}

/// Objects in the schema of a database: type, name, and SQL. Triggers and views would run code.
fn objects(connection: &Connection) -> rusqlite::Result<Vec<(String, String, Option<String>)>> {
    let mut listed = connection.prepare("select type, name, sql from sqlite_schema limit 100")?;
    let rows = listed.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

enum Opening {
    File(io::Error),
    Database(rusqlite::Error),
}

impl From<rusqlite::Error> for Opening {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

/// Locks the run for this process. The lock ends with the process, however that comes.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("journal.lock");
    let failed = |error| Error::io(format!("cannot lock {}", path.display()), error);
    let mut file = private::edit(&path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // For the message of the next one; it is of no use for anything else.
            file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())).map_err(failed)?;
            Ok(file)
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            let _ = (&file).take(20).read_to_string(&mut pid);
            let who = if pid.is_empty() { String::new() } else { format!(" (pid {pid})") };
            Err(RemoteError::error(
                error::ErrorCode::RunInUse,
                format!("another process{who} works on the run in {}", folder.display()),
                Some("wait for it, or begin a new run with --fresh".to_owned()),
            ))
        }
        Err(error) => Err(failed(error.into())),
    }
}

fn failed(what: &str, path: &Path, error: Option<&rusqlite::Error>) -> Error {
    let full = error.is_some_and(|error| error.sqlite_error_code() == Some(ErrorCode::DiskFull));
    let cause = match error {
        _ if full => io::Error::new(io::ErrorKind::StorageFull, "the disk is full"),
        Some(error) => io::Error::other(error.to_string()),
        None => io::Error::other("it was closed"),
    };
    Error::io(format!("cannot {what} the journal {}", path.display()), cause)
}

/// A record as it is in the file.
fn line(entry: &Entry) -> String {
    serde_json::to_string(entry).unwrap_or_default()
}

fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
