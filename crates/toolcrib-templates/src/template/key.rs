//! The key of a template: all that must be equal for two servers to be forked from the same process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
};

use serde_json::json;
use sha2::{Digest, Sha256};
use toolcrib_guard::ProcessSpec;

use super::{
    proof::Memory,
    python::{Entry, PythonStart},
};
use crate::{
    config::{Secrets, StdioConfig, TemplatePackages, secret_name},
    text::short_hex,
};

/// Variables that interpreters and libraries in C read when they are loaded, unseen by Python. One that ends in `*` stands for all
/// that begin so.
const READ_AT_START: &[&str] = &[
    "PYTHON*",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    // For the packages of the user, and for what is called while modules are imported.
    "HOME",
    "PATH",
    // The loader and the C library.
    "LD_*",
    "GLIBC_*",
    "MALLOC_*",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "LOCPATH",
    "NLSPATH",
    "CHARSET",
    "GCONV_PATH",
    "TZ",
    "TZDIR",
    "RES_OPTIONS",
    "LOCALDOMAIN",
    "HOSTALIASES",
    // Libraries of modules.
    "OPENSSL_*",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "OMP_*",
    "GOMP_*",
    "KMP_*",
    "MKL_*",
    "OPENBLAS_*",
    "GOTO_*",
    "BLIS_*",
    "CUDA_*",
    "NVIDIA_*",
    "GRPC_*",
    "RUST_*",
    "_RJEM_MALLOC_CONF",
    "MIMALLOC_*",
];
/// Variables of this program, and of a shell about one process.
const OF_ONE_PROCESS: &[&str] = &["TOOLCRIB_OWNER", "TOOLCRIB_TEMPLATE", "_", "PWD", "OLDPWD", "SHLVL"];
/// Where templates run: servers go into their own folders.
const FOLDER: &str = "/";

/// Properties that all servers of one template share.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    interpreter: PathBuf,
    flags: Vec<String>,
    /// The environment of the template.
    environment: BTreeMap<String, String>,
    /// Packages that the template may import.
    packages: TemplatePackages,
    /// The only program that the template is for. `None`: for all of them, so that it has what each of them imports.
    program: Option<Entry>,
}

impl fmt::Debug for Key {
    /// Variables are named, since their values may be private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interpreter, flags, environment, packages, program } = self;
        let names = environment.keys();
        f.debug_struct("Key")
            .field("interpreter", interpreter)
            .field("flags", flags)
            .field("environment", &names)
            .field("packages", packages)
            .field("program", program)
            .finish()
    }
}

impl fmt::Display for Key {
    /// The interpreter and its flags, and the program if it is for one alone.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.interpreter.display())?;
        self.flags.iter().try_for_each(|flag| write!(f, " {flag}"))?;
        match &self.program {
            Some(Entry::Module(name)) => write!(f, " -m {name}"),
            Some(Entry::Script(path)) => write!(f, " {path}"),
            None => Ok(()),
        }
    }
}

impl Key {
    /// The key of `start`, a start of `spec`.
    ///
    /// # Errors
    /// Why it cannot have a template: one of the variables that it would need is secret.
    pub(super) fn of(
        spec: &StdioConfig,
        start: &PythonStart,
        secrets: &Secrets,
    ) -> Result<Self, &'static str> {
        let open = |name: &str, value: &str| is_open(name, value, secrets);
        let own = spec.env.iter().filter(|(name, _)| is_one(READ_AT_START, name));
        if !own.clone().all(|(name, value)| open(name, value)) {
            return Err("a variable that Python reads at its start is secret");
        }
        let (Entry::Module(entry) | Entry::Script(entry)) = &start.entry;
        let mut words =
            start.flags.iter().chain([entry]).map(String::as_str).chain(start.interpreter.to_str());
        if !words.all(|word| secrets.hide(word) == word) {
            return Err("the path of its script or interpreter is secret");
        }
        // Of the others only what all servers get, and never the value that one of them has in place of it.
        let shared = spec.inherited.iter().filter(|(name, value)| {
            !is_one(READ_AT_START, name) && !is_one(OF_ONE_PROCESS, name) && open(name, value)
        });
        let environment = shared.chain(own).map(|(name, value)| (name.clone(), value.clone())).collect();
        let (interpreter, flags) = (start.interpreter.clone(), start.flags.clone());
        Ok(Self { interpreter, flags, environment, packages: spec.template, program: None })
    }

    /// The key of a template for this program alone.
    pub(super) fn of_program(&self, entry: &Entry) -> Self {
        Self { program: Some(entry.clone()), ..self.clone() }
    }

    /// Whether a template with this key is for one program alone, and differs from `other` in nothing else.
    pub(super) fn is_program_of(&self, other: &Self) -> bool {
        let program = self.program.as_ref().filter(|_| other.program.is_none());
        program.is_some_and(|program| *self == other.of_program(program))
    }

    /// The environment of a template: what is passed to all servers, and what interpreters read at their start. Nothing of it is
    /// secret, or of one server alone but for the latter.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.environment.clone()
    }

    /// Whether this and `entry` are those of a server as it is configured, with a variable of a task.
    pub(super) fn varies_by_task(&self, entry: &Entry) -> bool {
        let Self { interpreter, flags, environment, packages: _, program: _ } = self;
        let (Entry::Module(entry) | Entry::Script(entry)) = entry;
        let mut words = flags.iter().chain(environment.values()).chain([entry]);
        interpreter.as_os_str().as_encoded_bytes().contains(&0) || words.any(|word| word.contains('\0'))
    }

    /// Whether there is nothing secret in the environment of its template.
    pub(super) fn is_open(&self, secrets: &Secrets) -> bool {
        self.environment.iter().all(|(name, value)| is_open(name, value, secrets))
    }

    /// A name that is the same for equal keys.
    pub(super) fn hash(&self) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        };
        add(self.interpreter.as_os_str().as_encoded_bytes());
        add(&self.flags.len().to_le_bytes());
        self.flags.iter().for_each(|flag| add(flag.as_bytes()));
        for (name, value) in &self.environment {
            add(name.as_bytes());
            add(value.as_bytes());
        }
        if self.packages == TemplatePackages::All {
            add(b"all packages");
        }
        if let Some(Entry::Module(program) | Entry::Script(program)) = &self.program {
            add(b"program");
            add(program.as_bytes());
        }
        short_hex(hash)
    }

    /// The process that runs `code` as a template, for servers that begin at `entries`, without the modules `avoid`. `memory`: what was
    /// compared before, if that is still the same, and which servers get a template of their own then.
    pub(super) fn template(
        &self,
        code: &str,
        entries: &BTreeSet<Entry>,
        avoid: &BTreeSet<String>,
        memory: &Memory,
    ) -> ProcessSpec {
        fn pair(entry: &Entry) -> [&str; 2] {
            match entry {
                Entry::Module(name) => ["module", name],
                Entry::Script(path) => ["script", path],
            }
        }
        let entries: Vec<_> = entries.iter().map(pair).collect();
        let partial: Vec<_> = memory.partial.iter().map(pair).collect();
        let all = self.packages == TemplatePackages::All;
        let plan = json!({
            "entries": entries, "avoid": avoid, "all": all, "proven": memory.proven, "partial": partial
        });
        let plan = plan.to_string();
        let args = self.flags.iter().cloned().chain(["-c".to_owned(), code.to_owned(), plan]).collect();
        let mut spec = ProcessSpec::new(&self.interpreter, args, FOLDER);
        spec.env = self.environment().into();
        spec
    }
}

fn is_open(name: &str, value: &str, secrets: &Secrets) -> bool {
    !secret_name(name) && secrets.hide(value) == value
}

fn is_one(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *known,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn strings(pairs: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
        Arc::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn start() -> PythonStart {
        PythonStart {
            interpreter: "/env/bin/python".into(),
            flags: vec!["-u".to_owned()],
            entry: Entry::Module("server".to_owned()),
            line: Vec::new(),
            name: "python".to_owned(),
        }
    }

    fn spec(own: &[(&str, &str)]) -> StdioConfig {
        let shared = [("PATH", "/bin"), ("HOME", "/home/me"), ("TMPDIR", "/tmp"), ("XDG_TOKEN", "abcdefgh")];
        let mut spec = StdioConfig::new("server", Vec::new(), "/");
        spec.inherited = strings(&shared);
        spec.env = spec.inherited.clone();
        for (name, value) in own {
            spec.set_env(*name, (*value).to_owned());
        }
        spec
    }

    fn key(spec: &StdioConfig) -> Result<Key, &'static str> {
        Key::of(spec, &start(), &Secrets::new(["hunter2-hunter2".to_owned()]))
    }

    #[test]
    fn a_template_has_nothing_of_one_server() {
        let plain = key(&spec(&[])).unwrap();
        assert_eq!(
            plain.environment(),
            *strings(&[("HOME", "/home/me"), ("PATH", "/bin"), ("TMPDIR", "/tmp")])
        );
        for own in [("API_KEY", "hunter2-hunter2"), ("DEBUG", "1"), ("TMPDIR", "/other"), ("TOOLCRIB_X", "y")]
        {
            assert_eq!(key(&spec(&[own])), Ok(plain.clone()), "{own:?}");
            assert_eq!(key(&spec(&[own])).unwrap().hash(), plain.hash());
        }
        for own in
            [("PYTHONPATH", "/x"), ("PATH", "/y"), ("LC_ALL", "C"), ("TZ", "UTC"), ("SSL_CERT_FILE", "/x")]
        {
            let other = key(&spec(&[own])).unwrap();
            assert_ne!(other.hash(), plain.hash(), "{own:?}");
            assert_eq!(other.environment().get(own.0).map(String::as_str), Some(own.1));
        }
        let mut without = spec(&[]);
        Arc::make_mut(&mut without.env).remove("HOME");
        assert!(!key(&without).unwrap().environment().contains_key("HOME"), "as its server");
    }

    #[test]
    fn a_program_may_have_a_template_of_its_own() {
        let all = key(&spec(&[])).unwrap();
        let own = all.of_program(&Entry::Module("server".to_owned()));
        let other = all.of_program(&Entry::Script("/x/server".to_owned()));
        assert!(own.is_program_of(&all) && !all.is_program_of(&all) && !own.is_program_of(&other));
        let names = [&all, &own, &other].map(|key| (key.hash(), key.to_string()));
        assert!(names[0].0 != names[1].0 && names[1].0 != names[2].0);
        assert_eq!(names[1].1, "/env/bin/python -u -m server");
        assert_eq!(names[2].1, "/env/bin/python -u /x/server");
    }

    #[test]
    fn secret_start_variables_exclude_a_template() {
        for own in
            [("PYTHONPATH", "/x/hunter2-hunter2"), ("GRPC_AUTH", "x"), ("PATH", "/hunter2-hunter2:/bin")]
        {
            assert!(key(&spec(&[own])).unwrap_err().contains("secret"), "{own:?}");
        }
        let mut telling = start();
        telling.entry = Entry::Script("/hunter2-hunter2/x.py".to_owned());
        let refused = Key::of(&spec(&[]), &telling, &Secrets::new(["hunter2-hunter2".to_owned()]));
        assert!(refused.unwrap_err().contains("secret"));
        let told = format!("{:?}", key(&spec(&[("TZ", "Europe/Vienna")])).unwrap());
        assert!(told.contains("TZ") && !told.contains("Vienna"), "{told}");
    }

    #[test]
    fn a_template_is_told_what_it_is_for() {
        let entries = [Entry::Script("/x/bin/a".to_owned()), Entry::Module("b".to_owned())].into();
        let partial = vec![Entry::Module("b".to_owned())];
        let memory = Memory { proven: "a".to_owned(), partial, ..Memory::default() };
        let spec = key(&spec(&[])).unwrap().template("CODE", &entries, &["m.n".to_owned()].into(), &memory);
        assert_eq!(spec.command.to_str(), Some("/env/bin/python"));
        assert_eq!(spec.args[..3], ["-u", "-c", "CODE"]);
        let plan: serde_json::Value = serde_json::from_str(&spec.args[3]).unwrap();
        let entries = [["module", "b"], ["script", "/x/bin/a"]];
        assert_eq!(
            plan,
            json!({ "entries": entries, "avoid": ["m.n"], "all": false, "proven": "a", "partial": [["module", "b"]] })
        );
    }
}
