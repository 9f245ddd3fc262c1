//! Figures as cards: each with a label, and a line of details.

use super::escape;

/// One figure.
pub struct Card {
    /// A class of the style, or nothing.
    pub class: &'static str,
    /// The figure.
    pub figure: String,
    /// Label of the figure.
    pub what: String,
    /// A small line below.
    pub more: Option<String>,
}

impl Card {
    /// A plain card.
    pub fn new(figure: String, what: impl Into<String>) -> Self {
        Self { class: "", figure, what: what.into(), more: None }
    }

    /// The same with a small line below.
    #[must_use]
    pub fn more(self, more: Option<String>) -> Self {
        Self { more, ..self }
    }

    /// The list of `cards` as HTML.
    pub fn list(cards: &[Self]) -> String {
        let cards: Vec<String> = cards.iter().map(Self::html).collect();
        format!("<ul class=\"cards\">\n{}</ul>\n", cards.concat())
    }

    fn html(&self) -> String {
        let more = self.more.as_ref().map(|more| format!("<small>{}</small>", escape(more)));
        format!(
            "<li class=\"{}\"><b>{}</b><span>{}</span>{}</li>\n",
            self.class,
            escape(&self.figure),
            escape(&self.what),
            more.unwrap_or_default()
        )
    }
}
