//! The interface to the model that answers questions about pages for the built-in `fetch`. Servers know no more of the model
//! than this.

use futures_util::future::BoxFuture;

use super::ExtractionReport;

/// Answers questions about pages.
pub trait PageExtractor: Send + Sync {
    /// The answer, and what it took. The error says why there is none.
    fn extract(&self, question: String, page: String) -> BoxFuture<'_, Result<Extracted, String>>;
}

/// An answer to a question about a page.
pub struct Extracted {
    /// The answer.
    pub answer: String,
    /// Characters of the page that the model got.
    pub chars: usize,
    /// Cost of the answer.
    pub took: ExtractionReport,
}
