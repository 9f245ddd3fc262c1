//! The conversation of a task: all of it is kept; a model may be sent less.

use crate::llm::Message;

/// A conversation that can be set back.
#[derive(Debug)]
pub(super) struct History {
    messages: Vec<Message>,
    /// Which of the messages are results of tools.
    results: Vec<usize>,
}

impl History {
    pub(super) fn new(messages: Vec<Message>) -> Self {
        Self { messages, results: Vec::new() }
    }

    /// Has the conversation begin with this system prompt, in place of the one that it began with.
    pub(super) fn set_system(&mut self, system: Option<String>) {
        let has = matches!(self.messages.first(), Some(Message::System(_)));
        let Some(system) = system.map(Message::System) else { return };
        if has {
            self.messages[0] = system;
        } else {
            self.messages.insert(0, system);
            self.results.iter_mut().for_each(|at| *at += 1);
        }
    }

    pub(super) fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(super) fn push_results(&mut self, messages: Vec<Message>) {
        self.results.extend(self.messages.len()..self.messages.len() + messages.len());
        self.messages.extend(messages);
    }

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }
}
