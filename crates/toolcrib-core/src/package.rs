//! Which installed package a command starts: read from where its program lies, without starting anything.

mod npm;
mod pypi;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Package {
    /// Where packages of its kind come from.
    pub ecosystem: Ecosystem,
    /// Its name in its own metadata.
    pub name: String,
    /// The version that is installed.
    pub version: String,
}

/// Where packages come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Ecosystem {
    /// The registry of Node's packages.
    Npm,
    /// The Python Package Index.
    #[serde(rename = "pypi")]
    PyPi,
}

impl Package {
    /// A package by its name and version.
    pub fn new(ecosystem: Ecosystem, name: impl Into<String>, version: impl Into<String>) -> Self {
        Self { ecosystem, name: name.into(), version: version.into() }
    }
}

impl fmt::Display for Package {
    /// `npm name 1.2.3`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.ecosystem, self.name, self.version)
    }
}

impl fmt::Display for Ecosystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The target of a command line.
#[derive(Debug, PartialEq, Eq)]
enum Started<'a> {
    File(PathBuf),
    /// A Python module, by its dotted name.
    Module(&'a str),
}

/// Options of Node and Bun whose value is an argument of its own.
const NODE_VALUES: &[&str] =
    &["-r", "--require", "--import", "--loader", "--experimental-loader", "-C", "--conditions", "--preload"];
/// Options of Python whose value may be one.
const PYTHON_VALUES: &[&str] = &["-W", "-X", "--check-hash-based-pycs"];

/// The package of `program`, started with `args` in `cwd`. `None`: it belongs to no package, or this is unknown.
pub fn of(program: &Path, args: &[String], cwd: &Path) -> Option<Package> {
    match started(program, args, cwd)? {
        Started::Module(module) => pypi::of_module(program, module, cwd),
        Started::File(file) => {
            let real = file.canonicalize().ok()?;
            npm::of(&real).or_else(|| pypi::of_script(&file)).or_else(|| pypi::of_script(&real))
        }
    }
}

/// The target of a command line: the file or module behind the interpreter, if `program` is one. `None`: it runs code from
/// elsewhere, or nothing.
fn started<'a>(program: &Path, args: &'a [String], cwd: &Path) -> Option<Started<'a>> {
    let name = program.file_name()?.to_str()?;
    let version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    let python = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy")).is_some_and(version);
    let valued = match name {
        "node" | "nodejs" | "bun" => NODE_VALUES,
        _ if python => PYTHON_VALUES,
        _ => return Some(Started::File(cwd.join(program))),
    };
    let mut words = args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "-m" if python => return words.next().map(Started::Module),
            // Code on the command line, or from the input.
            "-c" | "-" if python => return None,
            "-e" | "--eval" | "-p" | "--print" | "-" => return None,
            _ if valued.contains(&word) => drop(words.next()),
            _ if word.starts_with('-') => {}
            file => return Some(Started::File(cwd.join(file))),
        }
    }
    None
}

#[cfg(test)]
mod tests;
