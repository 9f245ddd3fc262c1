//! A bare client of streamable HTTP. Each has connections of its own.

use std::{
    pin::pin,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use http_body_util::{BodyExt, Full};
use hyper::{
    Method, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::{Answer, Era, INITIALIZED, Identity, Message, Request, User, nobody, sort};

/// How long a stream may go on after its answer before its connection is given up.
const DRAIN: Duration = Duration::from_millis(200);
const SESSION: &str = "mcp-session-id";

pub(crate) struct HttpClient {
    url: Uri,
    /// `HOST:PORT` of the address.
    host: String,
    /// Connections whose answers were read.
    idle: Mutex<Vec<Connection>>,
    pub(crate) identity: Identity,
    /// `initialize` has been answered.
    opened: bool,
    session: Option<HeaderValue>,
    next_id: AtomicU64,
}

impl HttpClient {
    /// Opens a session, where the era has sessions.
    pub(crate) async fn open(url: &str, identity: Identity) -> anyhow::Result<Self> {
        let url: Uri = url.parse().with_context(|| format!("`{url}` is no address"))?;
        let host = url.authority().with_context(|| format!("`{url}` has no host"))?.to_string();
        let (idle, next_id) = (Mutex::default(), AtomicU64::new(1));
        let mut client = Self { url, host, idle, identity, opened: false, session: None, next_id };
        if client.identity.era == Era::Legacy {
            let request = client.identity.initialize();
            let (answer, session) = client.ask(&request, &nobody).await?;
            answer.map_err(|error| anyhow::anyhow!("initialize: {error}"))?;
            (client.opened, client.session) = (true, session);
            let told = client.post(None, INITIALIZED.to_owned()).await?;
            let status = told.response.status();
            anyhow::ensure!(status.is_success(), "notifications/initialized: {status}");
            client.read(told).await?;
        }
        Ok(client)
    }

    /// Sends a request and waits for its answer; `user` answers what the server asks meanwhile.
    pub(crate) async fn request(&self, request: &Request, user: User<'_>) -> anyhow::Result<Answer> {
        Ok(self.ask(request, user).await?.0)
    }

    /// Sends a request and gives back the response as it begins, to be read or not.
    pub(crate) async fn begin(&self, request: &Request) -> anyhow::Result<Response<Incoming>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ok(self.post(Some(request), request.text(id)).await?.detach())
    }

    /// Sends this text in the session, reads the answer and gives back its status.
    pub(crate) async fn post_text(&self, text: String) -> anyhow::Result<u16> {
        let reply = self.post(None, text).await?;
        let status = reply.response.status().as_u16();
        self.read(reply).await?;
        Ok(status)
    }

    /// Opens the stream for what the server says outside of requests.
    pub(crate) async fn listen(&self) -> anyhow::Result<Response<Incoming>> {
        let request = self.head(Method::GET, None).header(ACCEPT, "text/event-stream");
        let response = self.send(request.body(Full::default())?).await?.detach();
        anyhow::ensure!(response.status() == StatusCode::OK, "GET: {}", response.status());
        Ok(response)
    }

    /// Ends the session, if there is one.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        if self.session.is_some() {
            let request = self.head(Method::DELETE, None).body(Full::default())?;
            self.read(self.send(request).await?).await?;
        }
        Ok(())
    }

    async fn ask(&self, request: &Request, user: User<'_>) -> anyhow::Result<(Answer, Option<HeaderValue>)> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let Reply { response, mut connection } = self.post(Some(request), request.text(id)).await?;
        let session = response.headers().get(SESSION).cloned();
        let status = response.status();
        let is_stream = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if !is_stream.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let body = self.read(Reply { response, connection }).await?;
            let message: Value = serde_json::from_slice(&body).with_context(|| {
                format!("{}: {status}: {}", request.method, String::from_utf8_lossy(&body))
            })?;
            return match sort(message, Some(id), user) {
                Message::Answer(answer) => Ok((answer, session)),
                _ => anyhow::bail!("{}: {status} without an answer", request.method),
            };
        }
        let mut events = Events { body: response.into_body(), read: Vec::new() };
        while let Some(message) = connection.drive(events.next()).await? {
            match sort(message, Some(id), user) {
                Message::Answer(answer) => {
                    // The connection can be used again once the stream has ended.
                    let drained = async { while matches!(events.next().await, Ok(Some(_))) {} };
                    if tokio::time::timeout(DRAIN, connection.drive(drained)).await.is_ok() {
                        self.idle().push(connection);
                    }
                    return Ok((answer, session));
                }
                Message::Reply(reply) => {
                    self.read(self.post(None, reply).await?).await?;
                }
                Message::Other => {}
            }
        }
        anyhow::bail!("{}: the stream ended without an answer", request.method)
    }

    fn head(&self, method: Method, request: Option<&Request>) -> hyper::http::request::Builder {
        let mut head = hyper::Request::builder().method(method).uri(self.url.path()).header(HOST, &self.host);
        if let Some(session) = &self.session {
            head = head.header(SESSION, session);
        }
        if self.opened || self.identity.era == Era::Modern {
            head = head.header("mcp-protocol-version", self.identity.era.to_string());
        }
        if let Some(request) = request.filter(|_| self.identity.era == Era::Modern) {
            head = head.header("mcp-method", request.method);
            if let Some(name) = &request.name {
                head = head.header("mcp-name", name);
            }
            for (name, value) in &request.headers {
                head = head.header(name, value);
            }
        }
        head
    }

    async fn post(&self, request: Option<&Request>, body: String) -> anyhow::Result<Reply> {
        let head = self.head(Method::POST, request).header(CONTENT_TYPE, "application/json");
        let head = head.header(ACCEPT, "application/json, text/event-stream");
        self.send(head.body(Full::new(body.into()))?).await
    }

    async fn send(&self, request: hyper::Request<Full<Bytes>>) -> anyhow::Result<Reply> {
        let idle = || self.idle().pop();
        while let Some(mut connection) = idle() {
            // The server may have closed it meanwhile.
            if connection.is_ready().await {
                return connection.send(request).await;
            }
        }
        Connection::open(&self.host).await?.send(request).await
    }

    /// The body of a response, to its end.
    async fn read(&self, Reply { response, mut connection }: Reply) -> anyhow::Result<Bytes> {
        let body = connection.drive(response.into_body().collect()).await?.to_bytes();
        self.idle().push(connection);
        Ok(body)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response as it begins, and the connection that it comes from.
struct Reply {
    response: Response<Incoming>,
    connection: Connection,
}

impl Reply {
    /// The response, whose connection goes on by itself.
    fn detach(self) -> Response<Incoming> {
        let driver = self.connection.driver;
        #[expect(clippy::disallowed_methods, reason = "it ends with its connection")]
        tokio::spawn(driver);
        self.response
    }
}

/// A connection that goes on while its user waits: a task of its own would answer from another thread, and waking that is
/// measured too.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<TcpStream>, Full<Bytes>>,
}

impl Connection {
    async fn open(host: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(host).await?;
        stream.set_nodelay(true)?;
        #[expect(
            clippy::disallowed_methods,
            reason = "each client that is measured has connections of its own"
        )]
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver })
    }

    async fn is_ready(&mut self) -> bool {
        let Self { sender, driver } = self;
        tokio::select! {
            biased;
            _ = driver => false,
            ready = sender.ready() => ready.is_ok(),
        }
    }

    async fn send(mut self, request: hyper::Request<Full<Bytes>>) -> anyhow::Result<Reply> {
        let response = self.sender.send_request(request);
        let response = self.drive(response).await?;
        Ok(Reply { response, connection: self })
    }

    /// Waits for something of this connection.
    async fn drive<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        tokio::select! {
            biased;
            done = &mut awaited => done,
            // The connection has ended: what was read of it is still to be had.
            _ = &mut self.driver => awaited.await,
        }
    }
}

/// The messages of a stream of events.
struct Events {
    body: Incoming,
    read: Vec<u8>,
}

impl Events {
    async fn next(&mut self) -> anyhow::Result<Option<Value>> {
        loop {
            while let Some((event, rest)) = event(&self.read) {
                let data = data(&self.read[..event]);
                self.read.drain(..rest);
                // Without data it only keeps the connection open, or says where to go on.
                if !data.is_empty() {
                    return Ok(Some(serde_json::from_slice(&data)?));
                }
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.read.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

/// Where the first event ends, and where the next one begins.
fn event(read: &[u8]) -> Option<(usize, usize)> {
    let end = |mark: &[u8]| {
        let at = read.windows(mark.len()).position(|window| window == mark)?;
        Some((at, at + mark.len()))
    };
    [end(b"\n\n"), end(b"\r\n\r\n")].into_iter().flatten().min()
}

fn data(event: &[u8]) -> Vec<u8> {
    let lines = event.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    let lines = lines.map(<[u8]>::trim_ascii);
    lines.collect::<Vec<_>>().join(&b'\n')
}
