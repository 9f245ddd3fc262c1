//! Figures as cards: each with a label, and a line of details.

use maud::{Markup, html};

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
    pub fn list(cards: &[Self]) -> Markup {
        html! {
            ul class="cards" {
                @for Self { class, figure, what, more } in cards {
                    li class=(class) {
                        b { (figure) }
                        span { (what) }
                        @if let Some(more) = more { small { (more) } }
                    }
                }
            }
        }
    }
}
