//! Asks the client in the middle of a request, in the way of its era: by requests to it, or by results that say what is
//! missing, until the client sends the same request again with the answers.

use std::{collections::VecDeque, sync::LazyLock};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResult, ContentBlock, InputRequest, InputRequests, InputRequiredResult, InputResponses,
        ProtocolVersion, ServerRequest,
    },
    service::RequestContext,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

/// Why a request ends before its answers are there.
pub(crate) enum Stop {
    /// The client is asked by this result.
    Input(InputRequiredResult),
    /// The client refused.
    Refused(String),
    Failed(ErrorData),
}

/// The rounds of one request.
pub(crate) struct Rounds<'a> {
    context: &'a RequestContext<RoleServer>,
    /// Answers of earlier rounds, from the state that the client sent back.
    earlier: VecDeque<InputResponses>,
    /// Answers of the rounds that were gone through in this request.
    done: Vec<InputResponses>,
    /// The answers that came with this request.
    given: Option<InputResponses>,
    has_state: bool,
}

/// Whether the request is of 2026-07-28 or later.
pub(crate) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version >= ProtocolVersion::V_2026_07_28)
}

impl<'a> Rounds<'a> {
    /// Fails if the state is not one that this process has sealed.
    pub(crate) fn new(
        context: &'a RequestContext<RoleServer>,
        given: Option<InputResponses>,
        state: Option<&str>,
    ) -> Result<Self, ErrorData> {
        let earlier = state.map(unseal).transpose()?.unwrap_or_default();
        Ok(Self { context, earlier, done: Vec::new(), given, has_state: state.is_some() })
    }

    /// Asks the client. A modern one gets a state to send back if `sealed`, and after the first round always.
    pub(crate) async fn ask(
        &mut self,
        requests: impl IntoIterator<Item = (&'static str, InputRequest)>,
        sealed: bool,
    ) -> Result<InputResponses, Stop> {
        let requests: InputRequests =
            requests.into_iter().map(|(name, request)| (name.to_owned(), request)).collect();
        if !is_modern(self.context) {
            return self.ask_directly(requests).await;
        }
        let answers = match self.earlier.pop_front() {
            Some(answers) => answers,
            None => match self.given.take().filter(|given| {
                requests.keys().all(|name| given.get(name).is_some_and(Value::is_object))
                    && (self.has_state || !sealed)
            }) {
                Some(given) => given.into_iter().filter(|(name, _)| requests.contains_key(name)).collect(),
                None => {
                    let state = (sealed || !self.done.is_empty()).then(|| seal(&self.done));
                    return Err(Stop::Input(InputRequiredResult::new(Some(requests), state)));
                }
            },
        };
        self.done.push(answers.clone());
        Ok(answers)
    }

    /// Sends all requests before it waits for their answers.
    async fn ask_directly(&self, requests: InputRequests) -> Result<InputResponses, Stop> {
        let mut asking = JoinSet::new();
        for (name, request) in requests {
            let request = match request {
                InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
                InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
                InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
                _ => continue,
            };
            let peer = self.context.peer.clone();
            asking.spawn(async move { (name, peer.send_request(request).await) });
        }
        let mut answers = InputResponses::new();
        while let Some(asked) = asking.join_next().await {
            let (name, answer) = asked.map_err(|error| Stop::Refused(error.to_string()))?;
            let answer = answer.map_err(|error| Stop::Refused(error.to_string()))?;
            answers.insert(name, json!(answer));
        }
        Ok(answers)
    }
}

impl From<ErrorData> for Stop {
    fn from(error: ErrorData) -> Self {
        Self::Failed(error)
    }
}

/// The result of a tool whose client refused.
pub(crate) fn refusal(why: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("the client refused: {why}"))])
}

/// Changed with each process: no other state is accepted.
static KEY: LazyLock<u128> = LazyLock::new(|| fastrand::u128(..));

fn seal(answers: &[InputResponses]) -> String {
    let text = json!(answers).to_string();
    format!("{}.{text}", digest(&text))
}

fn unseal(state: &str) -> Result<VecDeque<InputResponses>, ErrorData> {
    let text = state.split_once('.').filter(|(seal, text)| *seal == digest(text)).map(|(_, text)| text);
    text.and_then(|text| serde_json::from_str(text).ok())
        .ok_or_else(|| ErrorData::invalid_params("requestState was changed, or is not of this server", None))
}

fn digest(text: &str) -> String {
    let digest = Sha256::new().chain_update(KEY.to_ne_bytes()).chain_update(text.as_bytes()).finalize();
    let (half, _) = digest.split_at(16);
    half.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
