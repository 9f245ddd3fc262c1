//! The handle that agents hold: in-flight limit and retries around one backend.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    Attempt, ChatAnswer, ChatRequest, ChatTimings, LlmError, LlmErrorClass as Class,
    fault::Fault,
    reissue::Kept,
    script::Script,
    stats::{Counters, LlmStats},
    transport::{OpenAi, Prepared},
    wire::Decoded,
};
use crate::{
    config::LlmConfig,
    error::{Error, Result},
    http::HttpClients,
    limit::Limit,
    retry::{self, Failure, RetryPolicy, Stop, Try},
};

/// A model, ready to be asked. Clones share limit, connections and counters.
#[derive(Clone)]
pub struct LlmClient(Arc<Inner>);

struct Inner {
    backend: Backend,
    label: String,
    limit: Limit,
    policy: RetryPolicy,
    request_timeout: Duration,
    max_tokens: Option<u32>,
    repeatable: bool,
    counters: Counters,
}

/// What makes one attempt.
///
/// Why an enum, and below the retries: a recorder or a replay of attempts belongs exactly here, as a further
/// variant that wraps another one, so that failed attempts are recorded and replayed as they were.
enum Backend {
    Http(Box<OpenAi>),
    Script(Script),
}

/// A request made ready for its backend.
enum Ready<'a> {
    Http(&'a OpenAi, Box<Prepared<'a>>),
    Script(&'a Script, &'a ChatRequest),
}

/// One request with what is kept between its attempts.
struct Call<'a> {
    request: &'a ChatRequest,
    ready: Ready<'a>,
    kept: Kept,
    deadline: Option<Instant>,
}

/// A failed attempt; nothing of it when it never got on the wire.
struct Failed(Option<Attempt>, Fault);

impl LlmClient {
    /// A model behind `base_url`, or the script that `model = "script:FILE"` names, relative to `base_dir`.
    pub fn new(config: &LlmConfig, http: &HttpClients, base_dir: &Path) -> Result<Self> {
        if let Some(file) = config.model.strip_prefix("script:") {
            let path = base_dir.join(file.trim());
            let text = std::fs::read_to_string(&path)
                .map_err(|error| Error::io(format!("cannot read the script {}", path.display()), error))?;
            let script = Script::parse(&path.display().to_string(), &text)?;
            return Ok(Self::build(Backend::Script(script), scripted(file.trim()), config));
        }
        let Some(base_url) = &config.base_url else {
            let help = "add base_url = \"http://host:8000/v1\", or use model = \"script:FILE\"".to_owned();
            return Err(Error::input("`base_url` is missing in [llm]", Some(help)));
        };
        if config.model.trim().is_empty() {
            let help = "add model = \"NAME\", as the server lists it under /v1/models".to_owned();
            return Err(Error::input("`model` is missing in [llm]", Some(help)));
        }
        let backend = OpenAi::new(config, base_url, http.models_for(base_url))?;
        Ok(Self::build(Backend::Http(Box::new(backend)), config.model.clone(), config))
    }

    /// A script from memory. `name` stands for it in labels and errors.
    pub fn script_text(name: &str, text: &str) -> Result<Self> {
        let mut config = LlmConfig::new(None, format!("script:{name}"));
        config.max_in_flight = None;
        Ok(Self::build(Backend::Script(Script::parse(name, text)?), scripted(name), &config))
    }

    fn build(backend: Backend, label: String, config: &LlmConfig) -> Self {
        Self(Arc::new(Inner {
            backend,
            label,
            limit: Limit::new("model requests", config.max_in_flight),
            policy: config.retry.clone(),
            request_timeout: config.request_timeout,
            max_tokens: config.max_tokens,
            repeatable: config.temperature == Some(0.0) || config.seed.is_some(),
            counters: Counters::default(),
        }))
    }

    /// The model's name, or `scripted (FILE)`.
    pub fn model_label(&self) -> &str {
        &self.0.label
    }

    /// Whether a script answers in place of a model.
    pub fn is_scripted(&self) -> bool {
        matches!(self.0.backend, Backend::Script(_))
    }

    /// What was counted so far.
    pub fn stats(&self) -> LlmStats {
        let opened = match &self.0.backend {
            Backend::Http(backend) => backend.connections_opened(),
            Backend::Script(_) => 0,
        };
        self.0.counters.stats(&self.0.limit.stats(), opened)
    }

    /// Asks the model, repeating what may be repeated. Dropping the future ends the request on the wire too.
    ///
    /// `deadline` is the caller's own: nothing is waited for beyond it, and the error then says so.
    pub async fn chat(
        &self,
        request: &ChatRequest,
        deadline: Option<Instant>,
    ) -> Result<ChatAnswer, LlmError> {
        let inner = &*self.0;
        inner.counters.request();
        let ready = match &inner.backend {
            Backend::Http(backend) => {
                let prepared = backend.prepare(request).map_err(|fault| self.error(*fault))?;
                Ready::Http(backend, Box::new(prepared))
            }
            Backend::Script(script) => Ready::Script(script, request),
        };
        let call = &Call { request, ready, kept: Kept::default(), deadline };
        let run = retry::run(&inner.policy, deadline, |attempt| inner.attempt(call, attempt)).await;
        let (mut attempts, mut last) = (Vec::new(), None);
        for Failed(attempt, fault) in run.failures {
            attempts.extend(attempt);
            last = Some(fault);
        }
        match run.result {
            Ok((decoded, attempt)) => {
                attempts.push(attempt);
                let decoded = call.kept.total(decoded);
                inner.counters.answered(decoded.usage);
                Ok(self.answer(decoded, attempts))
            }
            Err(stop) => {
                // Better a doubtful answer than none.
                if let Some(decoded) = call.kept.last() {
                    inner.counters.answered(decoded.usage);
                    return Ok(self.answer(decoded, attempts));
                }
                // The loop ends without an answer only after a failure.
                let fault = last.unwrap_or_else(|| Fault::new(Class::Permanent, "no attempt was made"));
                let gave_up = match stop {
                    Stop::Permanent => None,
                    Stop::GaveUp(reason) => Some(reason),
                };
                let mut error = self.error(fault);
                (error.attempts, error.waited, error.gave_up) = (attempts, run.waited, gave_up);
                Err(error)
            }
        }
    }

    fn answer(&self, decoded: Decoded, attempts: Vec<Attempt>) -> ChatAnswer {
        ChatAnswer {
            content: decoded.content,
            reasoning: decoded.reasoning,
            tool_calls: decoded.tool_calls,
            finish: decoded.finish,
            usage: decoded.usage,
            model: decoded.model.unwrap_or_else(|| self.0.label.clone()),
            scripted: self.is_scripted(),
            timings: ChatTimings::of(&attempts),
            attempts,
        }
    }

    fn error(&self, fault: Fault) -> LlmError {
        let url = match &self.0.backend {
            Backend::Http(backend) => Some(backend.shown_url()),
            Backend::Script(_) => None,
        };
        LlmError::of(fault, &self.0.label, url)
    }
}

impl Inner {
    /// One attempt: a place under the limit, held only while the attempt lasts, and the exchange within its time.
    async fn attempt(&self, call: &Call<'_>, attempt: Try) -> Result<(Decoded, Attempt), Failure<Failed>> {
        let deadline = call.deadline;
        let queue = Instant::now();
        let place = match deadline {
            None => Ok(self.limit.acquire().await),
            Some(deadline) => timeout_at(deadline, self.limit.acquire()).await,
        };
        let Ok(place) = place else {
            let fault =
                Fault::new(Class::Deadline, "the caller's deadline passed in the queue of max_in_flight");
            return Err(failure(Failed(None, fault), queue.elapsed()));
        };
        self.counters.attempt(attempt.number);
        let start = Instant::now();
        let end = self.end(start, attempt, deadline);
        let result = match timeout_at(end.at, self.exchange(call)).await {
            Ok(result) => result,
            Err(_) => Err(Fault::new(end.class, end.message)),
        };
        let queued = place.queued();
        drop(place);
        let mut record = Attempt {
            class: None,
            status: Some(200),
            waited: attempt.waited,
            queued,
            took: start.elapsed(),
            hint: None,
            message: None,
        };
        match result {
            Ok(decoded) => {
                let Some(class) = self.doubt(call, &decoded) else { return Ok((decoded, record)) };
                record.class = Some(class);
                let asked = self.asked(call.request);
                match call.kept.keep(decoded, class, asked, self.policy.reissue) {
                    Some(decoded) => Ok((decoded, record)),
                    None => {
                        let fault = Fault::new(class, "the answer is not good");
                        Err(failure(Failed(Some(record), fault), queued))
                    }
                }
            }
            Err(fault) => {
                tracing::debug!(
                    attempt = attempt.number,
                    class = fault.class.name(),
                    status = fault.status,
                    message = fault.message,
                    "model request failed"
                );
                record.class = Some(fault.class);
                record.status = fault.status;
                record.hint = fault.hint;
                record.message = Some(fault.message.clone());
                Err(failure(Failed(Some(record), fault), queued))
            }
        }
    }

    /// Sends the request, with the limit of tokens that earlier answers call for.
    async fn exchange(&self, call: &Call<'_>) -> Result<Decoded, Fault> {
        match &call.ready {
            Ready::Script(script, request) => script.answer(request).await,
            Ready::Http(backend, prepared) => match call.kept.raised(call.request) {
                None => backend.attempt(prepared).await,
                Some(request) => {
                    let prepared = backend.prepare(&request).map_err(|fault| *fault)?;
                    backend.attempt(&prepared).await
                }
            },
        }
    }

    /// What is wrong with an answer, if asking again may help. A script always says the same.
    fn doubt(&self, call: &Call<'_>, answer: &Decoded) -> Option<Class> {
        match call.ready {
            Ready::Script(..) => None,
            Ready::Http(..) => Kept::doubt(answer, self.asked(call.request), self.repeatable),
        }
    }

    /// The limit of tokens that the request starts with.
    fn asked(&self, request: &ChatRequest) -> Option<u32> {
        request.max_tokens.or(self.max_tokens)
    }

    /// When the attempt must end, and what it means if it does.
    fn end(&self, start: Instant, attempt: Try, deadline: Option<Instant>) -> End {
        let after =
            |limit: Duration| format!("no answer within {}", humantime::format_duration(retry::whole(limit)));
        let own = End {
            at: later(start, self.request_timeout),
            class: Class::Timeout,
            message: format!("{} (request_timeout in [llm])", after(self.request_timeout)),
        };
        let total = End {
            at: later(start, attempt.left),
            class: Class::Timeout,
            message: format!("{} of attempts and waits (retry.total in [llm])", after(self.policy.total)),
        };
        let callers = deadline.map(|at| End {
            at,
            class: Class::Deadline,
            message: "no answer before the caller's deadline".into(),
        });
        let earlier = if total.at < own.at { total } else { own };
        match callers {
            Some(callers) if callers.at <= earlier.at => callers,
            _ => earlier,
        }
    }
}

struct End {
    at: Instant,
    class: Class,
    message: String,
}

/// `start + wait`; a year on, where the sum cannot be held.
fn later(start: Instant, wait: Duration) -> Instant {
    start.checked_add(wait).unwrap_or_else(|| start + Duration::from_secs(365 * 86400))
}

fn failure(failed: Failed, queued: Duration) -> Failure<Failed> {
    let fault = &failed.1;
    Failure { retry: fault.class.retry(fault.advice), hint: fault.hint, queued, error: failed }
}

fn scripted(file: &str) -> String {
    format!("scripted ({file})")
}

impl fmt::Debug for LlmClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmClient").field("model", &self.0.label).finish_non_exhaustive()
    }
}
