//! The list of skipped tests, which nextest shows after the run.

use super::tidy::{functions_with, test_files};

/// Prints which tests are skipped on this machine, and what they need. `.config/nextest.toml` shows the output.
#[test]
fn skipped_tests_are_listed() {
    let files = test_files();
    for (requirement, needs) in toolcrib_testing::missing!() {
        let requires = |attribute: &str| {
            let names = attribute.strip_prefix("toolcrib_testing::requires(");
            names.is_some_and(|names| {
                names.trim_end_matches(")]").split(", ").any(|name| name == *requirement)
            })
        };
        let tests: Vec<&str> = files.iter().flat_map(|(_, text)| functions_with(text, requires)).collect();
        println!("skipped without {needs}: {}", tests.join(", "));
    }
    println!("docs/testing.md says how to run what is skipped.");
}
