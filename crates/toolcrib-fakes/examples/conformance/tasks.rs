//! The tools that may go on as a task (extension `io.modelcontextprotocol/tasks`), where the client knows tasks.

use std::time::Duration;

use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult, JsonObject,
    },
    service::RequestContext,
    task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions},
};
use serde_json::{Value, json};

use crate::{
    rounds::{Rounds, Stop},
    server::Fixture,
    tools::{field, form},
};

/// The tools that cannot answer a client without tasks.
const TASKS_ONLY: [&str; 4] = ["failing_job", "test_tool_with_task", "confirm_delete", "multi_input"];

/// Calls a tool of this file. `None` if `name` is none of them.
pub(crate) async fn call(
    fixture: &Fixture,
    name: &str,
    arguments: &JsonObject,
    rounds: &mut Rounds<'_>,
    context: &RequestContext<RoleServer>,
) -> Result<Option<CallToolResponse>, Stop> {
    let as_task = context.client_capabilities().is_some_and(|client| client.supports_tasks());
    if TASKS_ONLY.contains(&name) && !as_task {
        let wanted = ClientCapabilities::builder().enable_tasks().build();
        return Err(ErrorData::missing_required_client_capability(wanted).into());
    }
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str);
    let spawn = |work: Box<dyn FnOnce(TaskContext) -> TaskFuture>| -> CallToolResponse {
        CreateTaskResult::new(fixture.shared.tasks.spawn(TaskOptions::default(), work)).into()
    };
    let response = match name {
        "greet" => success(format!("Hello, {}!", argument("name").unwrap_or("friend"))).into(),
        "slow_compute" => {
            let seconds = arguments.get("seconds").and_then(Value::as_f64).unwrap_or(1.0);
            let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
            let label = argument("label").unwrap_or("compute");
            let text = format!("slow_compute({label}) done after {seconds}s");
            if as_task {
                spawn(Box::new(move |task| {
                    Box::pin(async move {
                        tokio::select! {
                            () = task.cancelled() => Err(TaskExit::Cancelled),
                            () = tokio::time::sleep(time) => Ok(success(text)),
                        }
                    })
                }))
            } else {
                tokio::time::sleep(time).await;
                success(text).into()
            }
        }
        "failing_job" => spawn(Box::new(|_| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(CallToolResult::error(vec![ContentBlock::text("failing_job: a result that is an error")]))
            })
        })),
        "protocol_error_job" => {
            let failure = || async {
                tokio::time::sleep(Duration::from_millis(200)).await;
                ErrorData::internal_error("protocol_error_job: an error of the protocol", None)
            };
            if !as_task {
                return Err(failure().await.into());
            }
            spawn(Box::new(move |_| Box::pin(async move { Err(TaskExit::Error(failure().await)) })))
        }
        "confirm_delete" => {
            let file = argument("filename").unwrap_or("file.txt").to_owned();
            spawn(Box::new(move |task| {
                Box::pin(async move {
                    let fields = json!({"confirm": {"type": "boolean"}});
                    let question = form(&format!("Delete {file}?"), &fields, &["confirm"]);
                    let answer = task.request_input("confirm", question).await?;
                    let confirmed = answer.pointer("/content/confirm").and_then(Value::as_bool);
                    let confirmed = confirmed.unwrap_or(false);
                    Ok(success(format!("confirm_delete({file}): confirmed = {confirmed}")))
                })
            }))
        }
        "multi_input" => spawn(Box::new(|task| {
            Box::pin(async move {
                let question = |name| {
                    form(&format!("Provide value {name}"), &json!({"value": {"type": "string"}}), &["value"])
                };
                let (a, b) = tokio::join!(
                    task.request_input("input-a", question("A")),
                    task.request_input("input-b", question("B")),
                );
                let (a, b) = (a?, b?);
                let value = |answer: &Value| answer.pointer("/content/value").cloned().unwrap_or_default();
                Ok(success(format!("multi_input: a = {}, b = {}", value(&a), value(&b))))
            })
        })),
        "test_tool_with_task" => {
            let question = form("What is your name?", &json!({"name": {"type": "string"}}), &["name"]);
            let answers = rounds.ask([("user_name", question)], false).await?;
            let text =
                format!("Hello, {}! (async)", field(&answers, "user_name", "name").unwrap_or("friend"));
            spawn(Box::new(move |_| {
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    Ok(success(text))
                })
            }))
        }
        _ => return Ok(None),
    };
    Ok(Some(response))
}

fn success(text: String) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}
