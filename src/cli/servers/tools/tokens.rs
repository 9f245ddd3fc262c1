//! `toolcrib tools --tokens`: what the list of tools costs a model.

use serde_json::json;
use toolcrib::{
    ServerName,
    catalog::TOKEN_RULE,
    cli_support::search_tokens,
    daemon::{ServerTools, ToolRow},
};

use crate::cli::terminal::{
    columns,
    ui::{Ui, counted},
};

/// One server with its tools, the most expensive first.
struct Cost<'a> {
    server: &'a ServerName,
    tokens: usize,
    tools: Vec<(usize, &'a ToolRow)>,
}

impl<'a> Cost<'a> {
    fn of(row: &'a ServerTools) -> Self {
        let mut tools: Vec<_> = row.tools.iter().map(|tool| (tool.tokens(), tool)).collect();
        tools.sort_by(|(one, _), (other, _)| other.cmp(one));
        Self { server: &row.name, tokens: tools.iter().map(|(tokens, _)| tokens).sum(), tools }
    }
}

/// The servers, the most expensive first, and the sum.
pub(super) fn show(ui: &Ui, rows: &[ServerTools]) {
    let mut costs: Vec<Cost<'_>> = rows.iter().map(Cost::of).collect();
    costs.retain(|cost| !cost.tools.is_empty());
    let servers: Vec<_> = costs.iter().map(|cost| (cost.server.clone(), cost.tools.len())).collect();
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.tokens));
    let total: usize = costs.iter().map(|cost| cost.tokens).sum();
    let tools: usize = costs.iter().map(|cost| cost.tools.len()).sum();
    let searched = search_tokens(&servers);
    if ui.json {
        let tool = |(tokens, tool): &(usize, &ToolRow)| json!({"name": tool.name, "visible_name": tool.visible_name, "tokens": tokens});
        let of_server = |cost: &Cost<'_>| {
            let tools: Vec<_> = cost.tools.iter().map(tool).collect();
            json!({"name": cost.server, "tokens": cost.tokens, "tools": tools})
        };
        let servers: Vec<_> = costs.iter().map(of_server).collect();
        Ui::json(json!({
            "schema": 1, "tokens": total, "tools": tools, "search_tokens": searched, "rule": TOKEN_RULE,
            "servers": servers,
        }));
        return;
    }
    let mut lines: Vec<[String; 2]> = Vec::new();
    for cost in &costs {
        let name = format!("{}  {}", cost.server, counted(cost.tools.len(), "tool"));
        lines.push([name, cost.tokens.to_string()]);
        lines
            .extend(cost.tools.iter().map(|(tokens, tool)| [format!("  {}", tool.name), tokens.to_string()]));
    }
    lines.push([format!("total  {}", counted(tools, "tool")), total.to_string()]);
    Ui::data(columns::lines(&lines, &[1]).join("\n"));
    for row in rows {
        if let Some(error) = &row.error {
            ui.failure("Failed", error, true);
        }
    }
    ui.status("Tokens", format!("{TOKEN_RULE}\nleave tools out with `tools.deny` of a server"));
    if searched < total {
        ui.status("Search", format!("{searched} tokens in their place, with `search` in [gateway]"));
    }
}
