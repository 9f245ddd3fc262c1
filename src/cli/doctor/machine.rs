//! What holds on this machine of what SECURITY.md promises.

use toolcrib::{Support, TeardownScope};

use super::{Findings, Mark};

/// Landlock from this version on keeps a server from signalling processes outside of its sandbox.
const CLOSES_SIGNALS: u8 = 6;
/// The least that a sandbox needs.
const CLOSES_FILES: u8 = 3;

pub(super) fn look(findings: &mut Findings, support: &Support) {
    teardown(findings, &support.teardown_scope);
    calls(findings);
    sandbox(findings, support);
    budgets(findings, support);
}

fn teardown(findings: &mut Findings, scope: &TeardownScope) {
    match scope {
        TeardownScope::Guard { .. } => {
            findings.add(Mark::Ok, "teardown", "guards: it holds through SIGKILL of toolcrib");
            let text = "a server gets three pipes and default signals, and nothing else that is open here";
            findings.add(Mark::Ok, "inheritance", text);
        }
        TeardownScope::Group { because } => {
            let text = format!("process groups only, not through SIGKILL of toolcrib: {because}");
            findings.add(Mark::Warn, "teardown", text).help =
                Some("name an executable that holds toolcrib as `guard` in [defaults]".to_owned());
            let text =
                "a server inherits what whoever started toolcrib left open, and signals that are ignored";
            findings.add(Mark::Warn, "inheritance", text);
        }
    }
}

fn calls(findings: &mut Findings) {
    let text = match Support::takes_back_unread() {
        true => {
            "none is run twice unless `retry_calls` allows it; what a lost server has not read is sent to the next one"
        }
        false => {
            "none is run twice unless `retry_calls` allows it; what was sent to a lost server has an unknown outcome"
        }
    };
    findings.add(Mark::Ok, "calls", text);
}

fn sandbox(findings: &mut Findings, support: &Support) {
    let &Support { landlock_abi, seccomp, .. } = support;
    if landlock_abi < CLOSES_FILES {
        let text = format!(
            "files cannot be closed to a server: Landlock {landlock_abi}, and {CLOSES_FILES} is needed"
        );
        findings.add(Mark::Warn, "sandbox", text).help = Some(
            "a server with a sandbox does not start here, unless it says `best_effort = true`".to_owned(),
        );
    } else {
        let text = format!("closes files, and the memory of other processes (Landlock {landlock_abi})");
        findings.add(Mark::Ok, "sandbox", text);
    }
    match seccomp {
        true => findings.add(
            Mark::Ok,
            "sandbox",
            "closes the network, local sockets, the keyring, and owners and attributes of files (seccomp)",
        ),
        false => findings.add(Mark::Warn, "sandbox", "the network cannot be closed to a server: no seccomp"),
    };
    let text = format!("does not close here: {}", support.sandbox_gaps().join("; "));
    let mark = if landlock_abi < CLOSES_SIGNALS { Mark::Warn } else { Mark::Ok };
    findings.add(mark, "sandbox", text);
}

fn budgets(findings: &mut Findings, support: &Support) {
    match &support.no_cgroup {
        None => findings.add(Mark::Ok, "budgets", "by cgroup v2: memory_max, cpu_max, processes_max"),
        Some(why) => {
            let holds = if support.root { "memory_max" } else { "memory_max and processes_max" };
            let text = format!("by resource limits: {holds} only; no cgroup: {why}");
            findings.add(Mark::Warn, "budgets", text)
        }
    };
}
