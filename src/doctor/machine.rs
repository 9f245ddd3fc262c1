//! Checks which promises of SECURITY.md hold on this machine.

use toolcrib_guard::HAS_GUARDS;

use super::{Finding, Mark};
use crate::process::{Support, TeardownScope};

/// Landlock from this version on keeps a server from signalling processes outside of its sandbox.
const CLOSES_SIGNALS: u8 = 6;
/// The least that a sandbox needs.
const CLOSES_FILES: u8 = 3;

/// Findings about what this machine can do for servers.
pub fn machine(support: &Support) -> Vec<Finding> {
    let mut findings = teardown(&support.teardown_scope);
    findings.push(calls());
    match &support.teardown_scope {
        TeardownScope::Guard { .. } => {
            findings.extend(sandbox(support));
            findings.push(budgets(support));
        }
        _ => findings.extend(unconfined()),
    }
    findings
}

fn teardown(scope: &TeardownScope) -> Vec<Finding> {
    match scope {
        TeardownScope::Guard { .. } => vec![
            Finding::ok("teardown", "guards: servers end even after SIGKILL of toolcrib"),
            Finding::ok(
                "inheritance",
                "a server gets three pipes and default signals, and nothing else that is open here",
            ),
        ],
        TeardownScope::Group { because } => vec![
            Finding { help: guard_help().map(str::to_owned), ..groups_only(because) },
            Finding::warn(
                "inheritance",
                "a server inherits what the program that starts it has open, and ignores; the command line resets all of it \
                 but the signals that `nohup` ignores",
            ),
        ],
        _ => vec![],
    }
}

fn groups_only(because: &str) -> Finding {
    Finding::warn("teardown", format!("process groups only: servers survive SIGKILL of toolcrib: {because}"))
}

/// How this build can get guards.
fn guard_help() -> Option<&'static str> {
    match (HAS_GUARDS, cfg!(target_os = "linux")) {
        (true, _) => Some("set `guard` in [defaults] to an executable that contains toolcrib"),
        (false, true) => Some("build toolcrib with the Cargo feature `guard`"),
        (false, false) => None,
    }
}

fn calls() -> Finding {
    let text = match Support::takes_back_unread() {
        true => {
            "none is run twice unless `retry_calls` allows it; what a lost server has not read is sent to the next one"
        }
        false => {
            "none is run twice unless `retry_calls` allows it; what was sent to a lost server has an unknown outcome"
        }
    };
    Finding::ok("calls", text)
}

/// A guard raises a sandbox and enforces budgets.
fn unconfined() -> [Finding; 2] {
    [("sandbox", "a server with a sandbox"), ("budgets", "a server with a budget")].map(
        |(subject, server)| {
            Finding::warn(subject, format!("none without a guard: {server} does not start here"))
        },
    )
}

fn sandbox(support: &Support) -> Vec<Finding> {
    if HAS_GUARDS && cfg!(not(feature = "sandbox")) {
        let text = "not part of this build (cargo feature `sandbox`): a server with a sandbox does not start";
        return vec![Finding::warn("sandbox", text)];
    }
    let &Support { landlock_abi, seccomp, .. } = support;
    let files = if landlock_abi < CLOSES_FILES {
        let text =
            format!("files cannot be restricted: Landlock {landlock_abi}, and {CLOSES_FILES} is needed");
        Finding::warn("sandbox", text)
            .help("a server with a sandbox does not start here, unless it says `best_effort = true`")
    } else {
        let text = format!("restricts files, and the memory of other processes (Landlock {landlock_abi})");
        Finding::ok("sandbox", text)
    };
    let network = match seccomp {
        true => Finding::ok(
            "sandbox",
            "restricts the network, local sockets, the keyring, and owners and attributes of files (seccomp)",
        ),
        false => Finding::warn("sandbox", "the network cannot be restricted: no seccomp"),
    };
    let mark = if landlock_abi < CLOSES_SIGNALS { Mark::Warn } else { Mark::Ok };
    let text = format!("cannot restrict on this machine: {}", support.sandbox_gaps().join("; "));
    vec![files, network, Finding::new(mark, "sandbox", text)]
}

fn budgets(support: &Support) -> Finding {
    match &support.no_cgroup {
        None => Finding::ok("budgets", "by cgroup v2: memory_max, cpu_max, processes_max"),
        Some(why) => {
            let holds = if support.root { "memory_max" } else { "memory_max and processes_max" };
            Finding::warn("budgets", format!("by resource limits: {holds} only; no cgroup: {why}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_needs_a_guard_is_reported_without_one() {
        let mut support = Support::detect();
        support.teardown_scope = TeardownScope::Group { because: "no reason".into() };
        let findings = machine(&support);
        let of = |subject: &str| -> Vec<&Finding> {
            findings.iter().filter(|finding| finding.subject == subject).collect()
        };
        for subject in ["sandbox", "budgets"] {
            let [finding] = of(subject)[..] else { panic!("{findings:?}") };
            assert!(
                finding.mark == Mark::Warn && finding.text.ends_with("does not start here"),
                "{finding:?}"
            );
        }
        // The key `guard` does nothing in a build without guards.
        let help = of("teardown")[0].help.as_deref().unwrap_or_default();
        assert_eq!(help.contains("[defaults]"), HAS_GUARDS, "{help}");
    }
}
