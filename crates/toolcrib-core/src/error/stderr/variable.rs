//! Finds the environment variables that a server misses, by its last words.

use super::{between, has};

/// The advice for a server whose words tell only in general that it misses something.
pub const VARIABLES: &str =
    "a server gets only the variables of its `env` and of `inherit_env`: add the one that it needs there";

/// How programs say that something is not there.
const MISSING: [&str; 18] = [
    "required",
    "missing",
    "not set",
    "be set",
    "must set",
    "please set",
    "set the",
    "not found",
    "not defined",
    "not provided",
    "not configured",
    "no api key",
    "provide",
    "undefined",
    "unset",
    "unbound variable",
    "is empty",
    "export ",
];

/// The variables that a server misses: those of the latest line that says so.
pub fn missing_variables<'a>(stderr: &'a [String]) -> Vec<&'a str> {
    // `os.environ[NAME]`, in a traceback of Python: then the name may be any.
    let of_python = stderr.iter().any(|line| line.contains("<frozen os>") || line.contains("/os.py\""));
    let named = |line: &'a String| {
        let looked_up = key(line).filter(|_| of_python);
        looked_up.map_or_else(|| names(line), |name| vec![name])
    };
    stderr.iter().rev().map(named).find(|names| !names.is_empty()).unwrap_or_default()
}

/// `GITHUB_TOKEN environment variable is required`, `missing API key FOO`, `KeyError: 'GITHUB_TOKEN'`
pub(super) fn variable(line: &str) -> Option<String> {
    let lower = line.to_ascii_lowercase();
    let subject = ["environment variable", "env var", "api key", "api_key", "apikey", "access token"];
    let is_general = has(&lower, &subject) && has(&lower, &MISSING);
    (is_general || !names(line).is_empty()).then(|| VARIABLES.to_owned())
}

/// Whether a word is written as the name of a variable that is made for a program.
pub fn is_setting(word: &str) -> bool {
    let is_compound = word.trim_matches('_').contains('_');
    is_upper(word) && is_compound
}

fn is_upper(word: &str) -> bool {
    let letters = word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    letters && word.starts_with(|c: char| c.is_ascii_uppercase())
}

/// Codes of errors and versions of libraries are written as variables are.
fn is_other(word: &str) -> bool {
    ["ERR_", "GLIBC", "CXXABI_"].iter().any(|start| word.starts_with(start))
        || ["_NOT_FOUND", "_ERROR", "_REQUIRED"].iter().any(|end| word.ends_with(end))
}

/// `KeyError: 'NAME'`
fn key(line: &str) -> Option<&str> {
    let is_name = |key: &&str| key.bytes().all(|byte| byte == b'_' || byte.is_ascii_alphanumeric());
    between(line, "KeyError: '", "'").filter(is_name)
}

/// The variables that one line says are missing.
fn names(line: &str) -> Vec<&str> {
    if let Some(key) = key(line) {
        return Some(key).filter(|key| is_setting(key)).into_iter().collect();
    }
    if !has(&line.to_ascii_lowercase(), &MISSING) {
        return Vec::new();
    }
    let words: Vec<&str> = line
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    let is = |index: Option<usize>, wanted: &[&str]| {
        let word = index.and_then(|index| words.get(index)).map(|word| word.to_ascii_lowercase());
        word.is_some_and(|word| wanted.contains(&word.as_str()))
    };
    let found = words.iter().enumerate().filter(|(index, word)| {
        let before = is(index.checked_sub(1), &["variable", "variables", "var", "vars"]);
        let behind = is(Some(index + 1), &["environment", "env", "unbound"]);
        let is_noun = ["API", "KEY", "ENV", "MCP", "ERROR", "THE", "URL"].contains(word);
        !is_other(word)
            && (is_setting(word) || ((before || behind) && is_upper(word) && word.len() > 1 && !is_noun))
    });
    found.map(|(_, word)| *word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_variables_are_found_in_words_of_all_kinds() {
        for (text, names) in [
            ("KeyError: 'GITHUB_TOKEN'", &["GITHUB_TOKEN"][..]),
            ("KeyError: 'TOKEN'", &[]),
            ("  File \"<frozen os>\", line 685, in __getitem__\nKeyError: 'TOKEN'", &["TOKEN"]),
            ("  File \"/usr/lib/python3.11/os.py\", line 1, in x\nKeyError: 'my_token'", &["my_token"]),
            ("  File \"<frozen os>\", line 685, in __getitem__\nKeyError: 'not a name'", &[]),
            ("libc.so.6: version `GLIBC_2.34' not found (required by node)", &[]),
            ("code HTTP_NOT_FOUND: not found", &[]),
            ("please set GITHUB_TOKEN", &["GITHUB_TOKEN"]),
            ("GITHUB_TOKEN is required", &["GITHUB_TOKEN"]),
            ("Missing environment variable: X1", &["X1"]),
            ("Missing environment variables: A_B, C_D", &["A_B", "C_D"]),
            ("Error: TOKEN environment variable is required", &["TOKEN"]),
            ("panic: SLACK_TOKEN environment variable not set", &["SLACK_TOKEN"]),
            ("server.sh: line 3: GITHUB_TOKEN: unbound variable", &["GITHUB_TOKEN"]),
            ("server.sh: 3: GITHUB_TOKEN: parameter not set", &["GITHUB_TOKEN"]),
            (
                "decouple.UndefinedValueError: DB_URL not found. Declare it as envvar or define a default value.",
                &["DB_URL"],
            ),
            ("environs.EnvError: Environment variable \"DB_URL\" not set", &["DB_URL"]),
            ("key not found: \"DB_URL\" (KeyError)", &["DB_URL"]),
            ("ImproperlyConfigured: Set the DB_URL environment variable", &["DB_URL"]),
            ("TypeError: process.env.DB_URL is undefined", &["DB_URL"]),
            ("Provide DB_URL, or DB_HOST\nbye", &["DB_URL", "DB_HOST"]),
            ("missing API key", &[]),
            ("TypeError [ERR_INVALID_ARG_TYPE]: \"path\" is required", &[]),
            ("DB_URL is bad", &[]),
            ("KeyError: 'name'", &[]),
        ] {
            let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
            assert_eq!(missing_variables(&lines), names, "{text}");
        }
    }
}
