//! The events of the stop ladder, under the target and the field that toolcrib documents.

/// A step of the stop ladder: `stdin_closed`, `sigterm`, `sigkill` or `exited`.
pub(crate) fn stop_step(step: &'static str) {
    tracing::debug!(target: "toolcrib", { "toolcrib.step" = step }, "stop ladder");
}
