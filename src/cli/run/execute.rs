//! Executes a run: starts servers, runs all tasks, stops servers, writes all files.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::json;
use toolcrib::{
    Agent, Borrower, Error, Event, Journal, LlmClient, Manager, Recorder, RunEnd, RunReport, ServerEvent,
    Tap, Tape, Told, Toolbox, run_all,
};

use super::{
    Cassette, Finished, Plan,
    events::{Reading, Sink},
    shown::Shown,
};
use crate::cli::{
    context::Context,
    events as server_events,
    heartbeat::Pending,
    progress::{Progress, Totals},
    report,
    ui::{Ui, counted, millis, seconds},
};

impl Plan {
    /// Starts the servers, runs all tasks, stops the servers, and says how it went.
    pub(crate) async fn execute(mut self, context: &Context<'_>) -> anyhow::Result<Finished> {
        let ui = context.ui;
        let began = Instant::now();
        let scripted = self.llm.as_ref().is_some_and(LlmClient::is_scripted);
        self.config.follow_stderr = true;
        let journal = Journal::create(&self.dir, &self.manifest(None, None), self.config.secrets.clone())?;
        let journal = Arc::new(journal);
        let tape = self.tape()?;
        let lines = self.events.as_deref().map(Sink::lines).transpose()?;
        let model = self.llm.as_ref().map(LlmClient::model_label);
        journal.events().run_started(&self.run, model, self.tasks.len(), self.jobs.get());
        if let Some(model) = model {
            ui.status("Model", model);
        }
        let manager = match &tape {
            Some(Tape::Replay(player)) => {
                let text =
                    format!("what was recorded {}: no server is started, no model asked", player.recorded());
                ui.status("Replaying", text);
                None
            }
            _ => Some(self.start(context, &journal).await.inspect_err(|_| {
                journal.events().run_ended(RunEnd::Stopped, 0);
            })?),
        };
        // Tasks without a required server would still cost money and be scored.
        if let Some(refused) = manager.as_ref().and_then(Context::refused_by_lock) {
            journal.events().run_ended(RunEnd::Stopped, 0);
            if let Some(manager) = manager {
                context.stop(manager).await?;
            }
            return Err(refused.into());
        }
        if let Some(manager) = &manager {
            self.warnings.learn(|| Context::unused_rules(&self.config, manager));
        }
        for warning in self.warnings.all() {
            ui.warning(&warning);
            warn(&journal, &warning);
        }
        let init = manager.as_ref().map_or(Duration::ZERO, |manager| manager.report().wall);
        let outcome = self.run_tasks(context, &journal, manager.as_ref(), tape.as_ref(), lines, began).await;
        if let Some(manager) = manager {
            context.stop(manager).await?;
        }
        let (reports, totals) = outcome?;
        let whole = !self.cancel.is_cancelled();
        let end = if whole { RunEnd::Finished } else { RunEnd::Stopped };
        journal.events().run_ended(end, reports.len());
        journal.events().check()?;
        let wall = began.elapsed();
        totals.summarize(ui, &self.run, wall);
        ui.status("Results", self.dir.join("results.jsonl").display().to_string());
        match report::write_beside(&self.dir) {
            Ok(page) => ui.status("Report", page.display().to_string()),
            Err(error) => ui.warn(format!("no report was made: {error}")),
        }
        if ui.json {
            let mut document = totals.document();
            document["warnings"] = json!(self.warnings.all());
            document["run"] = self.run.clone().into();
            document["dir"] = self.dir.display().to_string().into();
            document["init_ms"] = millis(init).into();
            document["wall_ms"] = millis(wall).into();
            document["model_scripted"] = scripted.into();
            // Of many tasks they are in the results.
            if let [report] = &reports[..] {
                document["answer"] = json!(report.answer);
            }
            Ui::json(document);
        }
        match &tape {
            Some(Tape::Record(recorder)) => recorder.check()?,
            Some(Tape::Replay(player)) => {
                if let Some(error) = player.difference() {
                    return Err(error.into());
                }
            }
            None => {}
        }
        if let Some(Cassette::Record(path)) = &self.cassette {
            ui.status("Recorded", path.display().to_string());
        }
        Ok(Finished { reports, init, totals })
    }

    fn tape(&self) -> Result<Option<Tape>, Error> {
        Ok(match &self.cassette {
            None => None,
            Some(Cassette::Replay(player)) => Some(Tape::Replay(player.clone())),
            Some(Cassette::Record(path)) => {
                let model = self.llm.as_ref().map(|llm| (llm.model_label(), llm.is_scripted()));
                Some(Tape::Record(Recorder::create(path, model, self.config.secrets.clone())?))
            }
        })
    }

    async fn start(&self, context: &Context<'_>, journal: &Arc<Journal>) -> anyhow::Result<Manager> {
        let ui = context.ui;
        ui.status("Starting", counted(self.config.servers.len(), "server"));
        let (shown, journal) = (ui.clone(), journal.clone());
        let observe = self.warnings.observing(move |event| {
            event.record(&journal);
            match event {
                ServerEvent::Failed { row } => shown.started(&row),
                ServerEvent::SlowCall { server, tool, waited } => {
                    server_events::slow_call(&shown, &server, &tool, waited);
                }
                ServerEvent::Warning { server, text } => {
                    server_events::server_warning(&shown, &server, &text);
                }
                _ => {}
            }
        });
        let pending = Pending::of(&self.config);
        let manager = context.start(&self.config, pending.observing(observe));
        let manager = pending.beside(ui, manager).await?;
        let report = manager.report();
        let (ready, all) = (report.ready(), self.config.servers.len());
        ui.status("Ready", format!("{ready} of {} in {}", counted(all, "server"), seconds(report.wall)));
        Ok(manager)
    }

    async fn run_tasks(
        &self,
        context: &Context<'_>,
        journal: &Journal,
        manager: Option<&Manager>,
        tape: Option<&Tape>,
        lines: Option<Sink>,
        began: Instant,
    ) -> anyhow::Result<(Vec<RunReport>, Totals)> {
        journal.write_manifest(&self.manifest(manager, None))?;
        let toolbox = manager.map_or_else(Toolbox::default, Manager::toolbox);
        let agent = match &self.llm {
            Some(llm) => Agent::new(llm.clone(), toolbox, self.config.agent.clone()),
            None => Agent::without_model(toolbox, self.config.agent.clone()),
        };
        let cancel = &self.cancel;
        let broken: Mutex<Option<Error>> = Mutex::new(None);
        let progress = Progress::new(context.ui, self.tasks.len(), began);
        let alone = progress.bar().filter(|_| self.tasks.len() == 1);
        let sink = lines
            .or_else(|| alone.map(|bar| Sink::Shown(Shown { ui: context.ui.clone(), bar: bar.clone() })));
        let reading = sink.map(|sink| Reading::start(sink, self.config.secrets.clone())).transpose()?;
        let (agent, reading) = match reading {
            Some((feed, reading)) => (agent.watched(feed), Some(reading)),
            None => (agent, None),
        };
        let working = run_all(
            self.tasks.clone(),
            self.jobs,
            cancel,
            |task| {
                let agent = &agent;
                async move {
                    let tap = Tap::new(&task.id, 1, Some(journal.events().clone()), tape.cloned());
                    let loan = manager.map(|manager| manager.lend(Borrower::Task));
                    let agent = match &loan {
                        Some(loan) => agent.with_toolbox(loan.toolbox()),
                        None => agent.clone(),
                    };
                    let report = agent.tapped(&tap).run(&task, cancel).await;
                    tap.ended(&report, !cancel.is_cancelled());
                    report
                }
            },
            |report| {
                report.run.clone_from(&self.run);
                report.attempt = report.attempt.max(1);
                let recorded = match tape {
                    Some(Tape::Record(recorder)) => recorder.check(),
                    _ => Ok(()),
                };
                match journal.append(report).and(recorded).and(journal.events().check()) {
                    // On disk now: a large batch need not hold all of its conversations until its end.
                    Ok(()) => {
                        report.transcript = Vec::new();
                        report.log = Vec::new();
                        report.outputs = Vec::new();
                        report.earlier = Vec::new();
                    }
                    Err(error) => {
                        cancel.cancel();
                        broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
                progress.done(report);
            },
        );
        // What a server lists when it is needed may show that a rule has no effect.
        let judge = || {
            let Some(manager) = manager else { return };
            for warning in self.warnings.learn(|| Context::unused_rules(&self.config, manager)) {
                progress.say(|| context.ui.warning(&warning));
                warn(journal, &warning);
            }
        };
        let working = async {
            let reports = self.warnings.beside(working, judge).await;
            judge();
            reports
        };
        let reports = progress.beside(working, || self.llm.as_ref().and_then(LlmClient::trouble)).await;
        // With it the feed is gone.
        drop(agent);
        if let Some(reading) = reading {
            reading.finish(context.ui, cancel).await;
        }
        journal.sort_results(self.tasks.iter().map(|task| task.id.as_str()))?;
        let mut totals = progress.finish();
        if let Some(llm) = &self.llm {
            totals.requests(&llm.stats());
        }
        journal.write_manifest(&self.manifest(manager, Some(&totals)))?;
        match broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.into()),
            None => Ok((reports, totals)),
        }
    }

    /// `run.json`: what was run with what.
    fn manifest(&self, manager: Option<&Manager>, totals: Option<&Totals>) -> serde_json::Value {
        let rows = manager.map_or(&[][..], |manager| &manager.report().servers);
        let servers: serde_json::Map<String, serde_json::Value> = rows
            .iter()
            .map(|row| {
                let about = match &row.outcome {
                    Ok(ready) if ready.parked.is_some() => {
                        json!({"state": "parked", "era": ready.era, "tools": ready.tools})
                    }
                    Ok(ready) => json!({"state": "ready", "era": ready.era, "tools": ready.tools,
                        "init_ms": millis(row.took), "phases_ms": ready.phases}),
                    Err(error) => json!({"state": "failed", "error": error.to_string()}),
                };
                (row.name.to_string(), about)
            })
            .collect();
        let arguments = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        json!({
            "schema": 1, "run": self.run, "toolcrib": env!("CARGO_PKG_VERSION"),
            "config": self.config.file, "model": self.llm.as_ref().map(LlmClient::model_label),
            "model_scripted": self.llm.as_ref().is_some_and(LlmClient::is_scripted),
            "arguments": std::iter::once("toolcrib".to_owned()).chain(arguments).collect::<Vec<_>>(),
            "replay": matches!(self.cassette, Some(Cassette::Replay(_))),
            "tasks_total": self.tasks.len(), "jobs": self.jobs, "servers": servers,
            "warnings": self.warnings.all(),
            "init_ms": manager.map(|manager| millis(manager.report().wall)), "totals": totals.map(Totals::document),
        })
    }
}

fn warn(journal: &Journal, warning: &Error) {
    journal.events().write(Event::Warning { error: Told::from(warning) });
}
