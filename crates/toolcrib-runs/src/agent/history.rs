//! The conversation of a task. All messages are kept; a request may send a shortened copy.

use crate::llm::Message;

/// Text in place of a result that is left out.
const LEFT_OUT: &str = "[this result was left out to save room]";

/// A conversation that can be set back.
#[derive(Debug)]
pub(super) struct History {
    messages: Vec<Message>,
    /// Positions of the messages that are results of tools.
    results: Vec<usize>,
    /// So many of the first results do not fit any more.
    outgrown: usize,
}

/// A point that a conversation can be set back to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Checkpoint(usize);

/// The conversation as it is sent to the model.
pub(super) struct Sent {
    pub messages: Vec<Message>,
    /// Characters of the messages.
    pub chars: usize,
    /// Results that are left out, and the characters that this saves.
    pub left_out: usize,
    pub saved: usize,
}

impl History {
    pub(super) fn new(messages: Vec<Message>) -> Self {
        Self { messages, results: Vec::new(), outgrown: 0 }
    }

    /// Makes the conversation begin with this system prompt, in place of the one that it began with.
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

    pub(super) fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.messages.len())
    }

    /// Forgets what came after.
    pub(super) fn restore(&mut self, Checkpoint(length): Checkpoint) {
        self.messages.truncate(length);
        self.results.retain(|at| *at < length);
        self.outgrown = self.outgrown.min(self.results.len());
    }

    /// The conversation for the model, with the last `keep` results, or all of them, as long as they fit.
    pub(super) fn for_model(&self, keep: Option<usize>) -> Sent {
        let left_out = self.left_out(keep);
        let mut messages = self.messages.clone();
        let mut saved = 0;
        for at in &self.results[..left_out] {
            let (Message::Tool { content, .. } | Message::User(content)) = &mut messages[*at] else {
                continue;
            };
            saved += content.chars().count().saturating_sub(LEFT_OUT.len());
            LEFT_OUT.clone_into(content);
        }
        let chars = messages.iter().map(|message| message.text().chars().count()).sum();
        Sent { messages, chars, left_out, saved }
    }

    fn left_out(&self, keep: Option<usize>) -> usize {
        let beyond = keep.map_or(0, |keep| self.results.len().saturating_sub(keep));
        beyond.max(self.outgrown)
    }

    /// Leaves out half of the results that are still sent, the older ones, for good. Says how many are left out now,
    /// or `None` if there was none to leave out.
    pub(super) fn shorten(&mut self, keep: Option<usize>) -> Option<usize> {
        let left_out = self.left_out(keep);
        let sent = self.results.len() - left_out;
        if sent == 0 {
            return None;
        }
        self.outgrown = left_out + sent.div_ceil(2);
        Some(self.outgrown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(results: usize) -> History {
        let mut history = History::new(vec![Message::User("question".into())]);
        history.set_system(Some("system".into()));
        for number in 0..results {
            history.push(Message::said(format!("call {number}"), vec![]));
            history.push_results(vec![Message::User(format!("{number}").repeat(1000))]);
        }
        history
    }

    fn sent(history: &History, keep: Option<usize>) -> String {
        let messages = history.for_model(keep).messages;
        let letter = |message: &Message| message.text().chars().next().unwrap();
        messages.iter().map(letter).collect()
    }

    #[test]
    fn only_the_sent_copy_is_shortened() {
        let history = history(3);
        assert_eq!(sent(&history, None), "sqc0c1c2");
        assert_eq!(sent(&history, Some(2)), "sqc[c1c2");
        assert_eq!(sent(&history, Some(0)), "sqc[c[c[");
        let copy = history.for_model(Some(1));
        assert_eq!((copy.left_out, copy.saved), (2, 2 * (1000 - LEFT_OUT.len())));
        assert_eq!(copy.chars + copy.saved, history.for_model(None).chars);
        assert_eq!(history.messages()[3].text().len(), 1000);
    }

    #[test]
    fn history_that_does_not_fit_is_halved_for_good() {
        let mut history = history(3);
        assert_eq!(history.shorten(None), Some(2));
        assert_eq!(sent(&history, None), "sqc[c[c2");
        assert_eq!((history.shorten(Some(5)), history.shorten(None)), (Some(3), None));
        history.push_results(vec![Message::User("new".into())]);
        assert_eq!(sent(&history, None), "sqc[c[c[n");
    }

    #[test]
    fn history_can_be_rolled_back() {
        let mut history = history(2);
        let mark = history.checkpoint();
        history.push(Message::said("x", vec![]));
        history.push_results(vec![Message::User("y".into())]);
        history.shorten(Some(0));
        history.restore(mark);
        assert_eq!((history.messages().len(), history.results.len()), (6, 2));
        assert_eq!(sent(&history, Some(1)), "sqc[c1");
    }
}
