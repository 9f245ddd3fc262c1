//! The fake model server: it answers as its scene says, and counts the requests that arrive. Its CPU time can be
//! separated from that of the client.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{Head, Loopback, request};

/// One request, as the scene sees it.
pub struct Arrival {
    /// Number of the request, from 0, in the order of arrival.
    pub number: usize,
    /// Requests in flight, this one included.
    pub in_flight: usize,
    /// Time since the server began.
    pub at: Duration,
    /// The first message of the request, which names it.
    pub who: String,
    /// How often that was sent, this time included.
    pub times: u32,
    /// The head of the request.
    pub head: Head,
    /// Its body.
    pub body: Value,
}

/// An answer, and the time after which it is given.
#[must_use]
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
    after: Duration,
    ready: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    end: End,
}

/// How an answer ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The answer ends as it should.
    Whole,
    /// The connection is closed in the middle of the body.
    Cut,
    /// The connection is reset in the middle of the body.
    Reset,
    /// The connection is reset before any of it.
    Nothing,
    /// The text is all that is written, then the connection is closed.
    Raw,
}

impl Reply {
    /// An answer of a model, after this time.
    pub fn good(after: Duration) -> Self {
        let message = json!({"role": "assistant", "content": "done"});
        let body = json!({"model": "loopback", "usage": {"prompt_tokens": 8, "completion_tokens": 1},
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
        Self::json(200, &body).after(after)
    }

    /// Any other answer.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::text(status, body.to_string())
    }

    /// The same with a body that need not be JSON.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            after: Duration::ZERO,
            ready: None,
            end: End::Whole,
        }
    }

    /// An error as OpenAI writes it.
    pub fn error(status: u16, message: &str) -> Self {
        Self::json(status, &json!({"error": {"message": message, "type": "scene"}}))
    }

    /// Sends these bytes unchanged and closes the connection.
    pub fn raw(bytes: impl Into<String>) -> Self {
        Self { end: End::Raw, ..Self::text(0, bytes) }
    }

    /// Adds this header; without one `content-type` is that of JSON.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Gives the answer after this time.
    pub fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    /// Gives the answer once `ready` is done.
    pub fn once(self, ready: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { ready: Some(Box::pin(ready)), ..self }
    }

    /// The connection is closed in the middle of the body.
    pub fn cut(self) -> Self {
        Self { end: End::Cut, ..self }
    }

    /// The connection is reset in the middle of the body.
    pub fn reset(self) -> Self {
        Self { end: End::Reset, ..self }
    }

    /// The connection is reset before any of it.
    pub fn nothing(self) -> Self {
        Self { end: End::Nothing, ..self }
    }
}

impl Reply {
    /// All that is written.
    fn message(self) -> String {
        if self.end == End::Raw {
            return self.body;
        }
        let mut head = format!("HTTP/1.1 {} Scene\r\n", self.status);
        if self.headers.iter().all(|(name, _)| *name != "content-type") {
            head.push_str("content-type: application/json\r\n");
        }
        for (name, value) in &self.headers {
            head.extend([name, ": ", value, "\r\n"]);
        }
        format!("{head}content-length: {}\r\n\r\n{}", self.body.len(), self.body)
    }
}

type Scene = dyn Fn(&Arrival) -> Reply + Send + Sync;

/// A model server on the loopback interface, in a thread of its own. Ends with its owner.
pub struct Server {
    server: Loopback,
    seen: Arc<Mutex<Seen>>,
    clock: mpsc::UnboundedSender<oneshot::Sender<Duration>>,
}

/// Requests and connections that arrived so far.
#[derive(Clone, Default)]
pub struct Seen {
    /// Who asked, and when.
    pub requests: Vec<(String, Duration)>,
    /// Connections that were opened.
    pub connections: usize,
    /// Most requests in flight at once.
    pub peak: usize,
    in_flight: usize,
    /// How many were in flight from each moment on.
    pub changes: Vec<(Instant, usize)>,
    /// How often each was sent.
    pub times: HashMap<String, u32>,
}

/// State that a connection needs.
#[derive(Clone)]
struct Desk {
    scene: Arc<Scene>,
    seen: Arc<Mutex<Seen>>,
    began: Instant,
}

impl Seen {
    fn change(&mut self, in_flight: usize) {
        self.in_flight = in_flight;
        self.peak = self.peak.max(in_flight);
        self.changes.push((Instant::now(), in_flight));
    }
}

impl Server {
    /// Serves `scene` on a free port.
    ///
    /// # Errors
    /// There is no port, or no thread.
    pub fn start(scene: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        Self::start_beside(scene, std::future::pending())
    }

    /// The same with work that goes on in the thread of the server.
    ///
    /// # Errors
    /// The errors of [`Server::start`].
    pub fn start_beside(
        scene: impl Fn(&Arrival) -> Reply + Send + Sync + 'static,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<Self> {
        let seen = Arc::<Mutex<Seen>>::default();
        let (clock, asked) = mpsc::unbounded_channel();
        let desk = Desk { scene: Arc::new(scene), seen: Arc::clone(&seen), began: Instant::now() };
        let serve = async move |listener| {
            tokio::join!(serve(listener, desk, asked), work);
        };
        Ok(Self { server: Loopback::start(serve)?, seen, clock })
    }

    /// The address, up to and including `/v1`.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Requests and connections that arrived so far.
    pub fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    /// CPU time of the server so far.
    pub async fn cpu(&self) -> Duration {
        let (tell, told) = oneshot::channel();
        let _ = self.clock.send(tell);
        told.await.unwrap_or_default()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    listener: TcpListener,
    desk: Desk,
    mut asked: mpsc::UnboundedReceiver<oneshot::Sender<Duration>>,
) {
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            Some(tell) = asked.recv() => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let time = Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0));
                let _ = tell.send(time);
            }
            accepted = listener.accept() => {
                // Accepting fails only without free descriptors, and then the callers see an error of their sockets.
                let Ok((socket, _)) = accepted else { return };
                lock(&desk.seen).connections += 1;
                let _ = socket.set_nodelay(true);
                let desk = desk.clone();
                // An error in there is a caller that hung up.
                tasks.spawn(async move { _ = desk.answer_all(socket).await });
                while tasks.try_join_next().is_some() {}
            }
        }
    }
}

impl Desk {
    /// The requests of one connection, one after the other.
    async fn answer_all(&self, socket: TcpStream) -> io::Result<()> {
        // The requests of these scenes fit. Two threads that ask the system for memory wait for each other, and the
        // other one is the client's.
        let mut socket = BufReader::with_capacity(1024, socket);
        loop {
            let (head, body) = match request(&mut socket).await {
                Ok(Some(request)) => request,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await?;
                    // Closing with unread bytes would take the answer back.
                    return tokio::io::copy(&mut socket, &mut tokio::io::sink()).await.map(drop);
                }
                Err(error) => return Err(error),
            };
            let body: Value = serde_json::from_slice(&body)?;
            let who =
                body.pointer("/messages/0/content").and_then(Value::as_str).unwrap_or_default().to_owned();
            let arrival = {
                let mut seen = lock(&self.seen);
                let at = self.began.elapsed();
                seen.requests.push((who.clone(), at));
                let in_flight = seen.in_flight + 1;
                seen.change(in_flight);
                let times = seen.times.entry(who.clone()).or_default();
                *times += 1;
                let times = *times;
                Arrival {
                    number: seen.requests.len() - 1,
                    in_flight: seen.in_flight,
                    at,
                    who,
                    times,
                    head,
                    body,
                }
            };
            let mut reply = (self.scene)(&arrival);
            if let Some(ready) = reply.ready.take() {
                ready.await;
            }
            tokio::time::sleep(reply.after).await;
            {
                let mut seen = lock(&self.seen);
                let in_flight = seen.in_flight - 1;
                seen.change(in_flight);
            }
            let length = reply.body.len();
            let end = reply.end;
            let mut answer = reply.message();
            match end {
                End::Whole | End::Raw => {}
                End::Cut | End::Reset => answer.truncate(answer.len() - length / 2),
                End::Nothing => answer.clear(),
            }
            socket.write_all(answer.as_bytes()).await?;
            match end {
                End::Whole => {}
                End::Cut | End::Raw => return Ok(()),
                End::Reset | End::Nothing => return socket.into_inner().set_zero_linger(),
            }
        }
    }
}
