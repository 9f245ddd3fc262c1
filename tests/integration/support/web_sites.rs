//! Web sites on the loopback that record requests, for the built-in servers that use the web.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::{HeaderMap, Method},
    response::Response,
    serve::ListenerExt,
};
use serde_json::Value;
use tokio::{net::TcpListener, task::JoinSet};
use toolcrib::{Config, Endpoint, Env, ServerConfig, ServerName};

/// A request as it came.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// Path and query.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Serves until it is dropped.
pub(crate) struct Site {
    /// The address without a slash at its end.
    pub(crate) url: String,
    accepted: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<Asked>>>,
    _tasks: JoinSet<()>,
}

impl Site {
    /// A site where `answer` has the say.
    pub(crate) async fn serve<F, R>(answer: F) -> Self
    where
        F: Fn(Asked) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response> + Send,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (accepted, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (count, log) = (Arc::clone(&accepted), Arc::clone(&asked));
        let router = Router::new().fallback(move |request: Request| {
            let (log, answer) = (Arc::clone(&log), answer.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
                let target = parts.uri.path_and_query().unwrap().to_string();
                let asked = Asked { method: parts.method, target, headers: parts.headers, body };
                log.lock().unwrap().push(asked.clone());
                answer(asked).await
            }
        });
        let listener = listener.tap_io(move |stream| {
            stream.set_nodelay(true).unwrap();
            count.fetch_add(1, SeqCst);
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, accepted, asked, _tasks: tasks }
    }

    /// Connections so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    /// Requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Targets of all requests so far, in order.
    pub(crate) fn targets(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.target).collect()
    }
}

/// The built-in server of that name, in memory.
pub(crate) fn builtin(name: &str, args: &[&str]) -> ServerConfig {
    let args = args.iter().map(ToString::to_string).collect();
    let endpoint = Endpoint::Builtin { name: name.to_owned(), args, base: std::env::temp_dir() };
    ServerConfig::new(ServerName::new(name).unwrap(), endpoint)
}

/// The server that servers.toml shows in comments, with this key for its variables.
pub(crate) fn documented(name: &str) -> ServerConfig {
    let example = include_str!("../../../servers.toml");
    let heading = format!("#[servers.{name}]");
    let lines = example.lines().skip_while(|line| *line != heading);
    let lines = lines.map_while(|line| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')));
    let text = lines.collect::<Vec<_>>().join("\n");
    let env = Env::new("/", [("PATH", "/bin"), ("SERPER_API_KEY", "k")]);
    let config = Config::parse(&text, None, &std::env::temp_dir(), &env).unwrap();
    config.servers[&ServerName::new(name).unwrap()].server.as_ref().unwrap().clone()
}
