//! The stderr of servers, one file each: `servers/NAME.stderr.log`, of bounded size.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    io::{self, Write},
    path::Path,
    sync::{Mutex, PoisonError},
};

use super::private::PrivateFolder;
use crate::{task::now, tool::ServerName};

/// A file of this size becomes `NAME.stderr.log.1`, in place of the one that was that before.
const LIMIT: u64 = 8 << 20;

/// The log files of a run's servers. Lines come without secrets.
#[derive(Debug)]
pub(super) struct StderrLogs {
    run: PrivateFolder,
    limit: u64,
    // Std mutex: held for one write.
    files: Mutex<HashMap<ServerName, Log>>,
}

#[derive(Debug)]
struct Log {
    folder: PrivateFolder,
    name: OsString,
    file: File,
    size: u64,
}

impl StderrLogs {
    /// Files in the folder `servers` of a run, which is made with the first line.
    pub(super) fn new(run: PrivateFolder) -> Self {
        Self { run, limit: LIMIT, files: Mutex::default() }
    }

    /// Adds a line with its time. Losing a line of a log is no reason to end a run.
    pub(super) fn write(&self, server: &ServerName, line: &str) {
        if let Err(error) = self.try_write(server, line) {
            tracing::warn!(%server, %error, "a line of stderr was not kept");
        }
    }

    fn try_write(&self, server: &ServerName, line: &str) -> io::Result<()> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if !files.contains_key(server) {
            let folder = self.run.below(Path::new("servers"))?;
            let name = OsString::from(format!("{server}.stderr.log"));
            let file = folder.append(&name)?;
            let size = file.metadata()?.len();
            files.insert(server.clone(), Log { folder, name, file, size });
        }
        let Some(log) = files.get_mut(server) else { return Ok(()) };
        let text = format!("{} {line}\n", now());
        if log.size > 0 && log.size + text.len() as u64 > self.limit {
            let mut old = log.name.clone();
            old.push(".1");
            log.folder.rename(&log.name, &old)?;
            (log.file, log.size) = (log.folder.append(&log.name)?, 0);
        }
        log.file.write_all(text.as_bytes())?;
        log.size += text.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_noisy_server_fills_at_most_two_files() {
        let home = tempfile::tempdir().unwrap();
        let logs = StderrLogs { limit: 1000, ..StderrLogs::new(PrivateFolder::open(home.path()).unwrap()) };
        let server = |name| ServerName::new(name).unwrap();
        logs.write(&server("quiet"), "hello");
        (0..200).for_each(|n| logs.write(&server("noisy.x"), &format!("line {n}")));
        let read = |name: &str| fs::read_to_string(home.path().join("servers").join(name)).unwrap();
        let mut names: Vec<_> = fs::read_dir(home.path().join("servers"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["noisy.x.stderr.log", "noisy.x.stderr.log.1", "quiet.stderr.log"]);
        assert!(read("quiet.stderr.log").ends_with("Z hello\n"));
        let all = read(names[1].as_str()) + &read(names[0].as_str());
        assert!(all.len() <= 2000 && all.ends_with("line 199\n"), "{all}");
        // Nothing is missing where one file goes over into the next.
        let numbers: Vec<u32> =
            all.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
    }
}
