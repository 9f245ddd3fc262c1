//! How long the servers of a configuration take to start, phase by phase.
//!
//! `cargo run --example init_time [servers.toml]`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::path::PathBuf;

use toolcrib::{Config, Env, Manager};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).map(PathBuf::from);
    let config = Config::load(file.as_deref(), &Env::process())?;
    let manager = Manager::start(&config).await?;
    let report = manager.report();
    println!(
        "{:<20} {:>9} {:>9} {:>10} {:>10} {:>9}",
        "server", "queue", "spawn", "first byte", "handshake", "list"
    );
    for row in &report.servers {
        match &row.outcome {
            Ok(ready) => {
                let phases = ready.phases;
                println!(
                    "{:<20} {:>9.1?} {:>9.1?} {:>10.1?} {:>10.1?} {:>9.1?}",
                    row.name, phases.queue, phases.spawn, phases.first_byte, phases.handshake, phases.list
                );
            }
            Err(error) => println!("{:<20} {error}", row.name),
        }
    }
    println!("{} of {} ready in {:.1?}", report.ready(), report.servers.len(), report.wall);
    let stopped = manager.shutdown().await;
    println!("{} processes left", stopped.survivors.len());
    Ok(())
}
