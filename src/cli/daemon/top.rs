//! `toolcrib top`: shows the daemon's servers and their events, live. The terminal is restored at every end: by a key,
//! by a signal, by a panic.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal},
    ops::ControlFlow,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use clap::Subcommand;
use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Modifier, Style, Stylize},
    text::Line,
    widgets::{Block, Borders, Paragraph},
};
use tokio::task::spawn_blocking;
use toolcrib::{
    Error,
    daemon::{DaemonClient, DaemonStatus, LogStream},
    session::ServerState,
};

use super::{
    args,
    logs::Printer,
    ps::{Sample, lines},
};
use crate::cli::{context::Context, terminal::ui::Ui};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Watch the daemon's servers and their events on the full screen; `q` quits.
    Top,
}

impl Command {
    pub(crate) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        match self {
            Self::Top => run(context).await,
        }
    }
}

/// Time between two looks at the servers.
const EVERY: Duration = Duration::from_secs(1);
/// How long is waited for a key at a time: then a signal may have come.
const KEY: Duration = Duration::from_millis(200);
/// Lines kept of what happened.
const KEPT: usize = 200;

/// The terminal in full-screen mode.
struct Screen(DefaultTerminal);

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Lines about the latest events.
#[derive(Clone, Default)]
struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn lines(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills it from the daemon until that ends.
    fn follow(&self, mut daemon: DaemonClient) {
        let tail = self.clone();
        // Ends with the program: it waits for the daemon and holds nothing else.
        std::thread::spawn(move || {
            let printer = Printer::new(false);
            let _ = daemon.logs(Vec::new(), true, false, |line| {
                if let Some(line) = line.filter(|line| line.stream == LogStream::Events) {
                    let mut lines = tail.lines();
                    if lines.len() == KEPT {
                        lines.pop_front();
                    }
                    lines.push_back(printer.text(&line));
                }
                ControlFlow::Continue(())
            });
        });
    }
}

async fn run(context: &Context<'_>) -> anyhow::Result<ExitCode> {
    if !(io::stdin().is_terminal() && Ui::is_terminal()) {
        let help = Some("elsewhere: toolcrib ps --watch".to_owned());
        return Err(Error::input("`top` needs a terminal", help).into());
    }
    let mut daemon = args::required(context)?;
    let tail = Tail::default();
    tail.follow(args::required(context)?);
    let terminal = ratatui::try_init().map_err(lost)?;
    let mut screen = Screen(terminal);
    let mut before: Option<Sample> = None;
    loop {
        let status = daemon.status()?;
        let sample = Sample::of(&status);
        let looked = Instant::now();
        while looked.elapsed() < EVERY {
            let drawn = screen.0.draw(|frame| {
                let width = usize::from(frame.area().width);
                let text = lines(daemon.greeting(), &status, &sample, before.as_ref(), Some(width));
                draw(frame, &status, text, &tail);
            });
            drawn.map_err(lost)?;
            let key = context.cancel.run_until_cancelled(spawn_blocking(next_key)).await;
            // A signal came.
            let Some(key) = key.transpose()? else { return Ok(ExitCode::SUCCESS) };
            if key.map_err(lost)?.is_some_and(quits) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        before = Some(sample);
    }
}

fn lost(error: io::Error) -> Error {
    Error::io("could not use the terminal", error)
}

/// The next key, if there is one soon.
fn next_key() -> io::Result<Option<KeyEvent>> {
    if !event::poll(KEY)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind == KeyEventKind::Press => Some(key),
        _ => None,
    })
}

/// Ctrl-C is a key here: the terminal sends no signal while it is ours.
fn quits(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || (control && key.code == KeyCode::Char('c'))
}

fn draw(frame: &mut Frame<'_>, status: &DaemonStatus, text: Vec<String>, tail: &Tail) {
    let rows = u16::try_from(text.len()).unwrap_or(u16::MAX);
    let [table, events, help] =
        Layout::vertical([Constraint::Max(rows), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    let states = status.servers.iter().map(|row| style(row.status.state));
    let styles = std::iter::once(Style::new().add_modifier(Modifier::BOLD)).chain(states);
    let plain = std::iter::repeat(Style::new().dim());
    let styled = text.into_iter().zip(styles.chain(plain)).map(|(line, style)| Line::styled(line, style));
    frame.render_widget(Paragraph::new(styled.collect::<Vec<_>>()), table);
    let block = Block::new().borders(Borders::TOP).title(" what happened ").dim();
    let room = usize::from(block.inner(events).height);
    let happened: Vec<Line<'_>> = {
        let lines = tail.lines();
        lines.iter().skip(lines.len().saturating_sub(room)).cloned().map(Line::raw).collect()
    };
    frame.render_widget(Paragraph::new(happened).block(block), events);
    frame.render_widget(Line::raw("q quits; the servers go on").dim(), help);
}

fn style(state: ServerState) -> Style {
    match state {
        ServerState::Ready => Style::new().green(),
        ServerState::Busy => Style::new().cyan(),
        ServerState::Failed => Style::new().red(),
        ServerState::Stopped => Style::new().dim(),
        _ => Style::new().yellow(),
    }
}
