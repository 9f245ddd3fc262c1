//! `toolcrib tools`: what the servers offer.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};
use toolcrib::{CatalogEntry, Lifecycle, Manager, ServerStart};

use super::{
    context::{Context, Locked},
    ui::{Ui, age, date, millis},
    up,
};

#[derive(Args)]
pub(super) struct Tools {
    /// Only these servers (names or patterns).
    servers: Vec<String>,
    /// Print the JSON Schema of each tool's arguments.
    #[arg(long)]
    schema: bool,
    /// Start lazy servers too, instead of showing what they listed at their last start.
    #[arg(long)]
    refresh: bool,
    /// Only tools whose name or description holds this text.
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    #[command(flatten)]
    locked: Locked,
}

impl Tools {
    pub(super) async fn run(self, context: &Context<'_>) -> anyhow::Result<ExitCode> {
        let mut config = context.load()?;
        self.locked.apply(&mut config);
        Context::narrow(&mut config, &self.servers)?;
        // Whoever only looks needs no server beforehand.
        for server in config.servers.values_mut().filter_map(|entry| entry.server.as_mut().ok()) {
            if server.lifecycle == Lifecycle::Background {
                server.lifecycle = Lifecycle::Lazy;
            }
        }
        if self.refresh {
            config.start_all();
        }
        let ui = context.ui;
        let manager = up::with_heartbeat(ui, context.start(&config, |_| {})).await?;
        let catalog = manager.catalog();
        let shown = |entry: &CatalogEntry| {
            let text = format!("{} {}", entry.tool.name, entry.tool.description).to_lowercase();
            self.search.as_ref().is_none_or(|wanted| text.contains(&wanted.to_lowercase()))
        };
        let of = |row: &ServerStart| {
            let entries = catalog.entries().iter().filter(|entry| entry.server == row.name && shown(entry));
            entries.cloned().collect::<Vec<_>>()
        };
        if ui.json {
            let rows: Vec<Value> =
                manager.report().servers.iter().map(|row| server_json(row, &of(row))).collect();
            Ui::data(config.secrets.hide(&json!({"schema": 1, "servers": rows}).to_string()));
        } else {
            for row in &manager.report().servers {
                let text: Vec<String> = of(row).iter().map(|entry| self.tool_text(entry)).collect();
                match &row.outcome {
                    Ok(_) if self.search.is_some() && text.is_empty() => {}
                    Ok(ready) => {
                        let parked = ready.parked.map(|listed| format!("  parked, listed {}", age(listed)));
                        let parked = parked.unwrap_or_default();
                        let text = format!("{}  {} tools{parked}\n{}", row.name, text.len(), text.join("\n"));
                        Ui::data(text);
                    }
                    Err(_) => ui.started(row),
                }
            }
        }
        self.finish(context, manager).await
    }

    async fn finish(self, context: &Context<'_>, manager: Manager) -> anyhow::Result<ExitCode> {
        // Whoever names one server wants that one: its failure is the command's.
        let only = match manager.report().servers.as_slice() {
            [row] if !self.servers.is_empty() => row.outcome.is_err(),
            _ => false,
        };
        context.stop(manager).await?;
        Ok(if only { ExitCode::from(4) } else { ExitCode::SUCCESS })
    }

    fn tool_text(&self, entry: &CatalogEntry) -> String {
        let first = entry.tool.description.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let signature = format!("{}({})", entry.tool.name, signature(&entry.tool.input_schema));
        let mut line: String = format!("  {signature:<44}  {}", first.trim()).chars().take(100).collect();
        line.truncate(line.trim_end().len());
        if self.schema {
            let schema = serde_json::to_string_pretty(&*entry.tool.input_schema).unwrap_or_default();
            line.push_str("\n    ");
            line.push_str(&schema.replace('\n', "\n    "));
        }
        line
    }
}

/// `zone, time?`: required arguments first as they are written, optional ones with a question mark.
fn signature(schema: &Map<String, Value>) -> String {
    let required = |name: &str| {
        let list = schema.get("required").and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|entry| entry == name))
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = properties.into_iter().flat_map(Map::keys);
    names
        .map(|name| if required(name) { name.clone() } else { format!("{name}?") })
        .collect::<Vec<_>>()
        .join(", ")
}

fn server_json(row: &ServerStart, tools: &[std::sync::Arc<CatalogEntry>]) -> Value {
    let tools: Vec<Value> = tools
        .iter()
        .map(|entry| {
            json!({"name": entry.tool.name, "visible_name": entry.visible_name,
                "description": entry.tool.description, "input_schema": entry.tool.input_schema,
                "annotations": entry.tool.annotations})
        })
        .collect();
    match &row.outcome {
        Ok(ready) => {
            json!({"name": row.name, "state": if ready.parked.is_some() { "parked" } else { "ready" },
            "era": ready.era, "pid": ready.pid, "init_ms": millis(row.took), "listed": ready.parked.map(date),
            "error": null, "tools": tools})
        }
        Err(error) => json!({"name": row.name, "state": "failed", "era": null, "pid": null,
            "init_ms": millis(row.took), "tools": [], "error": {"code": error.code(),
            "message": error.to_string(), "cause": error.causes(), "help": error.help(),
            "stderr_tail": error.stderr_tail()}}),
    }
}
