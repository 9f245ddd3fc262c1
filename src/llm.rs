//! The model: written over by its own room.

/// A model request that failed for good.
#[derive(Debug, thiserror::Error)]
#[error("placeholder")]
pub struct LlmError;
impl LlmError {
    /// Stable code.
    pub fn code(&self) -> crate::error::ErrorCode {
        crate::error::ErrorCode::LlmFailed
    }
    /// Why.
    pub fn causes(&self) -> Vec<String> {
        Vec::new()
    }
    /// What next.
    pub fn help(&self) -> Option<String> {
        None
    }
}
