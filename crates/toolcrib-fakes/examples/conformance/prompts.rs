//! The prompts.

use rmcp::{
    ErrorData, RoleServer,
    model::{GetPromptRequestParams, GetPromptResponse, GetPromptResult},
    service::RequestContext,
};
use serde_json::{Value, json};

use crate::{
    content::PNG,
    rounds::{Rounds, Stop},
    tools::{field, form},
};

/// Gives a prompt.
pub(crate) async fn get(
    request: GetPromptRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<GetPromptResponse, ErrorData> {
    let arguments = request.arguments.unwrap_or_default();
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or("");
    let text = |text: String| json!({"type": "text", "text": text});
    let contents = match &*request.name {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.".to_owned())],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1"), argument("arg2"));
            vec![text(format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => {
            let resource = json!({
                "uri": argument("resourceUri"), "mimeType": "text/plain",
                "text": "Embedded resource content for testing."
            });
            let resource = json!({"type": "resource", "resource": resource});
            vec![resource, text("Please process the embedded resource above.".to_owned())]
        }
        "test_prompt_with_image" => {
            let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
            vec![image, text("Please analyze the image above.".to_owned())]
        }
        "test_input_required_result_prompt" => {
            let state = request.request_state.as_deref();
            let mut rounds = Rounds::new(context, request.input_responses, state)?;
            let fields = json!({"context": {"type": "string"}});
            let question = form("What context should the prompt use?", &fields, &["context"]);
            match rounds.ask([("user_context", question)], false).await {
                Ok(answers) => {
                    let given = field(&answers, "user_context", "context").unwrap_or("none");
                    vec![text(format!("Prompt with elicited context: {given}"))]
                }
                Err(Stop::Input(result)) => return Ok(result.into()),
                Err(Stop::Refused(why)) => return Err(ErrorData::invalid_request(why, None)),
                Err(Stop::Failed(error)) => return Err(error),
            }
        }
        name => return Err(ErrorData::invalid_params(format!("unknown prompt: {name}"), None)),
    };
    let messages: Vec<_> =
        contents.into_iter().map(|content| json!({"role": "user", "content": content})).collect();
    let messages = serde_json::from_value(json!(messages))
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    Ok(GetPromptResult::new(messages).into())
}
