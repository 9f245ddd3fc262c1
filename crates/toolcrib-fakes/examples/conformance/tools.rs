//! The tools that do more than give a result of `content.json`.

use std::{sync::atomic::Ordering, time::Duration};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock,
        CreateMessageRequest, CreateMessageRequestParams, ElicitRequest, ElicitRequestParams, InputRequest,
        InputResponses, JsonObject, ListRootsRequest, LoggingLevel, LoggingMessageNotificationParam,
        ProgressNotificationParam, SamplingMessage,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use crate::{
    content::CONTENT,
    rounds::{Rounds, Stop, is_modern, refusal},
    server::{Change, Fixture},
    tasks,
};

/// Calls a tool.
pub(crate) async fn call(
    fixture: &Fixture,
    mut request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    if let Some(result) = CONTENT.results.get(&*request.name) {
        return Ok(result.clone().into());
    }
    if CONTENT.tool(&request.name).is_none() {
        return Err(ErrorData::invalid_params(format!("unknown tool: {}", request.name), None));
    }
    let arguments = request.arguments.take().unwrap_or_default();
    let state = request.request_state.as_deref();
    let mut rounds = Rounds::new(context, request.input_responses.take(), state)?;
    let outcome = match tasks::call(fixture, &request.name, &arguments, &mut rounds, context).await {
        Ok(Some(response)) => return Ok(response),
        Ok(None) => match ask(&request.name, &arguments, &mut rounds, context).await {
            Ok(None) => act(fixture, &request.name, &arguments, context).await.map_err(Stop::Failed),
            Ok(Some(text)) => Ok(text),
            Err(stop) => Err(stop),
        },
        Err(stop) => Err(stop),
    };
    match outcome {
        Ok(text) => Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into()),
        Err(Stop::Input(result)) => Ok(result.into()),
        Err(Stop::Refused(why)) => Ok(refusal(&why).into()),
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// The tools that ask nothing.
async fn act(
    fixture: &Fixture,
    name: &str,
    arguments: &JsonObject,
    context: &RequestContext<RoleServer>,
) -> Result<String, ErrorData> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    match name {
        "test_tool_with_logging" => {
            for message in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
                log(fixture, context, LoggingLevel::Info, message).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Logging test completed".to_owned())
        }
        "test_logging_tool" => {
            log(fixture, context, LoggingLevel::Emergency, "log messages were asked for").await;
            Ok("Logging tool completed".to_owned())
        }
        "test_tool_with_progress" => {
            for (progress, message) in [(0.0, "Starting"), (50.0, "Halfway"), (100.0, "Complete")] {
                if let Some(token) = context.meta.get_progress_token() {
                    let progress = ProgressNotificationParam::new(token, progress);
                    let progress = progress.with_total(100.0).with_message(message);
                    // A client that is gone needs no progress.
                    let _ = context.peer.notify_progress(progress).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok("Progress test completed".to_owned())
        }
        "test_reconnection" => {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok("Reconnection test completed".to_owned())
        }
        "test_wait" => {
            let time = Duration::from_millis(arguments.get("ms").and_then(Value::as_u64).unwrap_or(0));
            let _counted = fixture.shared.waiting();
            tokio::select! {
                () = tokio::time::sleep(time) => Ok("waited".to_owned()),
                () = context.ct.cancelled() => {
                    fixture.shared.cancellations.fetch_add(1, Ordering::Relaxed);
                    Err(ErrorData::internal_error("cancelled", None))
                }
            }
        }
        "test_cancellations" => Ok(fixture.shared.cancellations.load(Ordering::Relaxed).to_string()),
        "test_waiting" => Ok(fixture.shared.waiting.load(Ordering::Relaxed).to_string()),
        "test_meeting" => {
            fixture.shared.meeting.wait().await;
            Ok("met".to_owned())
        }
        "test_missing_capability" => {
            if context.client_capabilities().is_some_and(|client| client.sampling.is_some()) {
                return Ok("Required capability declared".to_owned());
            }
            let wanted = ClientCapabilities::builder().enable_sampling().build();
            Err(ErrorData::missing_required_client_capability(wanted))
        }
        "test_trigger_tool_change" => {
            fixture.tell(&Change::Tools, context).await;
            Ok("Tool list change triggered".to_owned())
        }
        "test_trigger_prompt_change" => {
            fixture.tell(&Change::Prompts, context).await;
            Ok("Prompt list change triggered".to_owned())
        }
        "test_trigger_resource_update" => {
            let uri = text("uri").ok_or_else(|| ErrorData::invalid_params("uri must be a string", None))?;
            fixture.tell(&Change::Resource(uri.to_owned()), context).await;
            Ok(format!("Update of {uri} triggered"))
        }
        "test_custom_header" => {
            let value = text("value").map(ToOwned::to_owned);
            value.ok_or_else(|| ErrorData::invalid_params("value must be a string", None))
        }
        "json_schema_2020_12_tool" => Ok(format!("Hello, {}!", text("name").unwrap_or("world"))),
        _ => Err(ErrorData::internal_error(format!("{name} is listed and does nothing"), None)),
    }
}

/// The tools that ask the client. `None` if `name` is none of them.
async fn ask(
    name: &str,
    arguments: &JsonObject,
    rounds: &mut Rounds<'_>,
    context: &RequestContext<RoleServer>,
) -> Result<Option<String>, Stop> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let your_name = || form("What is your name?", &json!({"name": {"type": "string"}}), &["name"]);
    let done = match name {
        "test_sampling" => {
            let prompt = text("prompt").unwrap_or("Hello");
            let answers = rounds.ask([("sampling", sampling(prompt))], false).await?;
            format!("LLM response: {}", sampled(&answers, "sampling"))
        }
        "test_elicitation" => {
            let fields = json!({
                "username": {"type": "string", "description": "User's response"},
                "email": {"type": "string", "description": "User's email address"},
            });
            let message = text("message").unwrap_or("Please provide your information");
            let question = form(message, &fields, &["username", "email"]);
            outcome("User response", &rounds.ask([("user", question)], false).await?)
        }
        "test_elicitation_url" => {
            let question = ElicitRequestParams::UrlElicitationParams {
                meta: None,
                message: "Open the address".to_owned(),
                url: "https://example.com/form".to_owned(),
                // Removed with 2026-07-28.
                elicitation_id: if is_modern(context) { String::new() } else { "url-1".to_owned() },
            };
            let question = InputRequest::Elicitation(ElicitRequest::new(question));
            outcome("Address", &rounds.ask([("address", question)], false).await?)
        }
        "test_elicitation_sep1034_defaults" => {
            let question = form("Please provide values (all have defaults)", &defaults(), &[]);
            outcome("Elicitation completed", &rounds.ask([("values", question)], false).await?)
        }
        "test_elicitation_sep1330_enums" => {
            let question = form("Please choose", &choices(), &[]);
            outcome("Elicitation completed", &rounds.ask([("choices", question)], false).await?)
        }
        "test_streaming_elicitation" => {
            let question = form("Provide a value", &json!({"value": {"type": "string"}}), &["value"]);
            outcome("Value", &rounds.ask([("streaming_elicitation", question)], false).await?)
        }
        "test_roots" | "test_input_required_result_list_roots" => {
            let answers = rounds.ask([("client_roots", roots())], false).await?;
            let roots = answers.get("client_roots").and_then(|answer| answer.get("roots"));
            let roots = roots.and_then(Value::as_array).into_iter().flatten();
            let roots: Vec<_> = roots.filter_map(|root| root.get("uri")?.as_str()).collect();
            format!("Client roots: [{}]", roots.join(", "))
        }
        "test_input_required_result_elicitation" => {
            let answers = rounds.ask([("user_name", your_name())], false).await?;
            format!("Hello, {}!", field(&answers, "user_name", "name").unwrap_or("friend"))
        }
        "test_input_required_result_sampling" => {
            let question = sampling("What is the capital of France?");
            let answers = rounds.ask([("capital_question", question)], false).await?;
            format!("Sampling response: {}", sampled(&answers, "capital_question"))
        }
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
            let question = form("Please confirm", &json!({"ok": {"type": "boolean"}}), &["ok"]);
            rounds.ask([("confirm", question)], true).await?;
            "Confirmed: state-ok".to_owned()
        }
        "test_input_required_result_multiple_inputs" => {
            let questions = [
                ("user_name", your_name()),
                ("greeting", sampling("Generate a greeting")),
                ("client_roots", roots()),
            ];
            rounds.ask(questions, true).await?;
            "All inputs received".to_owned()
        }
        "test_input_required_result_multi_round" => {
            let first = form("Step 1: What is your name?", &json!({"name": {"type": "string"}}), &["name"]);
            let first = rounds.ask([("step1", first)], true).await?;
            let color = json!({"color": {"type": "string"}});
            let second = form("Step 2: What is your favorite color?", &color, &["color"]);
            let second = rounds.ask([("step2", second)], true).await?;
            let name = field(&first, "step1", "name").unwrap_or("nobody");
            format!(
                "Multi-round flow complete: {name}, {}",
                field(&second, "step2", "color").unwrap_or("none")
            )
        }
        "test_input_required_result_capabilities" => {
            let client = context.client_capabilities().unwrap_or_default();
            let mut questions = Vec::new();
            questions.extend(client.elicitation.is_some().then(|| ("user_name", your_name())));
            questions
                .extend(client.sampling.is_some().then(|| ("greeting", sampling("Generate a greeting"))));
            questions.extend(client.roots.is_some().then(|| ("client_roots", roots())));
            if questions.is_empty() {
                return Ok(Some("The client can be asked for nothing".to_owned()));
            }
            rounds.ask(questions, false).await?;
            "Capability-aware flow complete".to_owned()
        }
        _ => return Ok(None),
    };
    Ok(Some(done))
}

/// Sends a log message, if the client wants one of this level.
async fn log(fixture: &Fixture, context: &RequestContext<RoleServer>, level: LoggingLevel, text: &str) {
    let wanted = if is_modern(context) { context.meta.log_level() } else { Some(fixture.log_level()) };
    if wanted.is_some_and(|wanted| severity(level) >= severity(wanted)) {
        let message = LoggingMessageNotificationParam::new(level, json!(text)).with_logger("conformance");
        // A client that is gone needs no log.
        let _ = context.peer.notify_logging_message(message).await;
    }
}

/// The place of a level among all of them, the least severe first.
fn severity(level: LoggingLevel) -> usize {
    use LoggingLevel::{Alert, Critical, Debug, Emergency, Error, Info, Notice, Warning};
    let levels = [Debug, Info, Notice, Warning, Error, Critical, Alert, Emergency];
    levels.iter().position(|known| *known == level).unwrap_or(0)
}

pub(crate) fn form(message: &str, fields: &Value, required: &[&str]) -> InputRequest {
    let schema = json!({"type": "object", "properties": fields, "required": required});
    InputRequest::Elicitation(ElicitRequest::new(ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.to_owned(),
        requested_schema: serde_json::from_value(schema).expect("the fields are those of a form"),
    }))
}

fn sampling(prompt: &str) -> InputRequest {
    let messages = vec![SamplingMessage::user_text(prompt)];
    InputRequest::CreateMessage(CreateMessageRequest::new(CreateMessageRequestParams::new(messages, 100)))
}

fn roots() -> InputRequest {
    InputRequest::ListRoots(ListRootsRequest::default())
}

/// A field of the form that was answered as `question`.
pub(crate) fn field<'a>(answers: &'a InputResponses, question: &str, field: &str) -> Option<&'a str> {
    answers.get(question)?.get("content")?.get(field)?.as_str()
}

/// The text that the client's model gave.
fn sampled<'a>(answers: &'a InputResponses, question: &str) -> &'a str {
    let content = answers.get(question).and_then(|answer| answer.get("content"));
    let text = content.and_then(|content| content.get("text").or_else(|| content.get(0)?.get("text")));
    text.and_then(Value::as_str).unwrap_or("no text")
}

/// The user's choice, and the form as it was filled in, in words.
fn outcome(what: &str, answers: &InputResponses) -> String {
    let answer = answers.values().next();
    let part = |name: &str| answer.and_then(|answer| answer.get(name));
    let action = part("action").and_then(Value::as_str).unwrap_or("none");
    format!("{what}: action={action}, content={}", part("content").unwrap_or(&json!({})))
}

fn defaults() -> Value {
    json!({
        "name": {"type": "string", "description": "User's name", "default": "John Doe"},
        "age": {"type": "integer", "description": "User's age", "default": 30},
        "score": {"type": "number", "description": "User's score", "default": 95.5},
        "status": {
            "type": "string", "description": "User's status",
            "enum": ["active", "inactive", "pending"], "default": "active"
        },
        "verified": {"type": "boolean", "description": "Whether the user is verified", "default": true},
    })
}

fn choices() -> Value {
    let titled = json!([
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]);
    json!({
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string", "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"]
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    })
}
