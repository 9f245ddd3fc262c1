//! Servers that are forked from a template, in a Python environment of the test's own.

mod effects;
mod faults;
mod isolation;
mod proofs;
mod restarts;
mod runners;

use toolcrib::ServerConfig;

use crate::support::python::PythonLab;

/// A server of each task's own that runs `text`.
fn script_server(lab: &PythonLab, name: &str, text: &str) -> ServerConfig {
    let server = lab.server(name, "teller.py", &[]);
    std::fs::write(lab.lab.file(&format!("scripts-of-{name}/teller.py")), text).unwrap();
    server
}
