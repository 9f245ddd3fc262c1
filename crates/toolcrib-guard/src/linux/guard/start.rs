//! The request to start a server, as the manager sends it to the zygote for the guard.

use std::{
    collections::BTreeMap,
    ffi::{CStr, CString, c_char},
    fs::File,
    io::{self, Write},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::FileExt},
    },
    path::Path,
    ptr,
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
};
use serde::{Deserialize, Serialize};
use syscalls::{Sysno, syscall};

use super::wire::{Graces, REQUEST};
use crate::{ProcessSpec, linux::confine::Confinement, marks::MARKER};

/// The interpreter of a script that names none in its first line.
const SHELL: &CStr = c"/bin/sh";

/// A request to start a server, with arguments and variables as execve(2) takes them.
pub(super) struct Start {
    pub(super) program: CString,
    pub(super) folder: CString,
    /// The shell, which is used only for a script without interpreter, the program's name, its arguments, and a null
    /// pointer.
    args: Vec<*const c_char>,
    /// `NAME=value` each, among them the mark of the server, and a null pointer.
    env: Vec<*const c_char>,
    pub(super) settings: GuardSettings,
    /// The strings that the pointers refer to.
    strings: Vec<u8>,
}

/// The settings of the guard.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GuardSettings {
    /// The waits of the stop ladder if the manager ends without an order.
    pub(super) graces: Graces,
    /// The restrictions of the server.
    pub(super) wanted: Confinement,
}

/// The first string of a start that a template carries out by a fork.
#[derive(Serialize)]
pub(super) struct ForkHeader<'a> {
    /// Words for the fork that becomes the guard.
    pub(super) fork: ForkWords<'a>,
    /// Settings for the guard.
    pub(super) settings: GuardSettings,
}

/// How the fork of a template becomes a guard.
#[derive(Serialize)]
pub(super) struct ForkWords<'a> {
    /// The short name of the server's process.
    pub(super) name: &'a str,
    /// The arguments of the guard, without the id of the server.
    pub(super) guard_args: [&'a str; 3],
    /// The environment of the guard.
    pub(super) guard_env: BTreeMap<&'a str, String>,
}

/// The part of a [`ForkHeader`] that the guard reads.
#[derive(Deserialize)]
struct ForkedHeader {
    settings: GuardSettings,
}

/// Encodes the start of a server by a fork of a template, as a file in memory.
pub(super) fn write_fork(header: &ForkHeader<'_>, spec: &ProcessSpec, mark: &str) -> io::Result<OwnedFd> {
    let mut strings = StringTable(Vec::new());
    strings.add(&[&serde_json::to_vec(header)?])?;
    strings.add_process(&spec.command, spec, mark)?;
    strings.into_file()
}

/// Decodes the settings of the guard from the file of [`write_fork`].
pub(super) fn read_fork(file: OwnedFd) -> io::Result<GuardSettings> {
    let strings = read_file(&file.into())?;
    let header = strings.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(serde_json::from_slice::<ForkedHeader>(header)?.settings)
}

/// Reads from offset 0: other processes share and move the position of this file.
fn read_file(file: &File) -> io::Result<Vec<u8>> {
    let mut strings = vec![0; usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut strings, 0)?;
    Ok(strings)
}

impl Start {
    /// Encodes the start of `program` by `spec` as strings that each end with a zero byte. If they are longer than a
    /// packet they are in a file in memory.
    pub(super) fn write(
        program: &Path,
        spec: &ProcessSpec,
        mark: &str,
        settings: &GuardSettings,
    ) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut strings = StringTable(Vec::new());
        strings.add(&[&serde_json::to_vec(settings)?])?;
        strings.add_process(program, spec, mark)?;
        if strings.0.len() <= REQUEST {
            return Ok((strings.0, None));
        }
        Ok((b"in the file".to_vec(), Some(strings.into_file()?)))
    }

    /// Decodes it from the packet, or from the file that came with it.
    pub(super) fn read(packet: &[u8], file: Option<OwnedFd>) -> io::Result<Self> {
        let strings = match file.map(File::from) {
            None => packet.to_vec(),
            Some(file) => read_file(&file)?,
        };
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not a start");
        let words = strings.split_inclusive(|byte| *byte == 0);
        let mut words = words.map_while(|word| CStr::from_bytes_with_nul(word).ok());
        let settings = serde_json::from_slice(words.next().ok_or_else(wrong)?.to_bytes())?;
        let folder = words.next().ok_or_else(wrong)?.to_owned();
        let count = words.next().and_then(|count| count.to_str().ok()?.parse().ok()).ok_or_else(wrong)?;
        let words: Vec<&CStr> = words.collect();
        let (args, env) = words.split_at_checked(count).ok_or_else(wrong)?;
        let program = (*args.first().ok_or_else(wrong)?).to_owned();
        let pointers = |words: &[&CStr]| words.iter().map(|word| word.as_ptr()).collect::<Vec<_>>();
        let args = [vec![SHELL.as_ptr()], pointers(args), vec![ptr::null()]].concat();
        let env = [pointers(env), vec![ptr::null()]].concat();
        Ok(Self { program, folder, args, env, settings, strings })
    }

    /// The value of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<&[u8]> {
        // The variables follow after three other strings and the arguments.
        let env = self.strings.split(|byte| *byte == 0).skip(self.args.len() + 1);
        env.filter_map(|word| word.strip_prefix(name.as_bytes())).find_map(|rest| rest.strip_prefix(b"="))
    }

    /// Executes the program and returns only if that fails. Allocates no memory and does not write to shared memory, as
    /// the C library would with its error number.
    pub(super) fn exec(&self) -> Errno {
        let failure = self.become_program(&self.program, self.args.get(1..).unwrap_or_default());
        match failure {
            Errno::NOEXEC => self.become_program(SHELL, &self.args),
            failure => failure,
        }
    }

    fn become_program(&self, program: &CStr, args: &[*const c_char]) -> Errno {
        #[expect(unsafe_code, reason = "no safe way to execute a program without taking memory")]
        // SAFETY: a string and two arrays of strings that end with a null pointer; all of them are owned by `self`.
        let outcome = unsafe {
            syscall!(
                Sysno::execve,
                program.as_ptr().expose_provenance(),
                args.as_ptr().expose_provenance(),
                self.env.as_ptr().expose_provenance()
            )
        };
        outcome.err().map_or(Errno::INVAL, |error| Errno::from_raw_os_error(error.into_raw()))
    }
}

/// Strings that each end with a zero byte.
struct StringTable(Vec<u8>);

impl StringTable {
    fn add(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        if parts.iter().any(|part| part.contains(&0)) {
            let why = "a zero byte in the command, an argument, a variable or the working directory";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        for part in parts {
            self.0.extend_from_slice(part);
        }
        self.0.push(0);
        Ok(())
    }

    /// Adds the working directory, the arguments and the environment.
    fn add_process(&mut self, program: &Path, spec: &ProcessSpec, mark: &str) -> io::Result<()> {
        self.add(&[spec.cwd.as_os_str().as_bytes()])?;
        self.add(&[(spec.args.len() + 1).to_string().as_bytes()])?;
        self.add(&[program.as_os_str().as_bytes()])?;
        for arg in &spec.args {
            self.add(&[arg.as_bytes()])?;
        }
        // The mark is the first variable, because a search reads only the beginning of an environment.
        self.add(&[MARKER.as_bytes(), b"=", mark.as_bytes()])?;
        for (name, value) in &*spec.env {
            self.add(&[name.as_bytes(), b"=", value.as_bytes()])?;
        }
        Ok(())
    }

    fn into_file(self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create("toolcrib-start", MemfdFlags::CLOEXEC)?);
        file.write_all(&self.0)?;
        Ok(file.into())
    }
}
