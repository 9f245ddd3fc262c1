//! Merges the servers of imported files.

use std::{path::Path, sync::Arc};

use super::Merge;
use crate::{
    config::{
        ServerEntry,
        check::owner::Owners,
        env::Env,
        file::{
            import,
            raw::{RawKind, RawServer},
            source_location::{SourceLocation, Text},
        },
    },
    error::Result,
    tool::ServerName,
};

impl Merge<'_> {
    /// Adds the servers of one imported file. `taken`: names used so far; the first `local` are of the importing file, those of
    /// disabled servers included.
    pub(super) fn import(
        &mut self,
        source: &Text,
        origin: &SourceLocation,
        taken: &mut Vec<ServerName>,
        local: usize,
    ) -> Result<()> {
        self.found.places.extend(import::places(&source.value, self.env));
        let found = import::find(&source.value, &origin.folder, self.env).map_err(|(message, help)| {
            origin.error(source.line, Some(source.key.clone()), message, Some(help))
        })?;
        let from = match found {
            import::ImportSource::File(from) => from,
            import::ImportSource::Absent(note) => {
                self.notes.push(note);
                return Ok(());
            }
        };
        self.found.files.extend(from.file.clone());
        if let Some(file) = &from.file {
            Owners::of(self.env).admit_beside(file, origin.file.as_deref())?;
        }
        let file = import::read(&from, self.env.folder(), &mut self.notes, &mut self.found.contents)?;
        let name_of_file = from.name();
        for server in file {
            if let Some(at) = taken.iter().position(|name| *name == server.name) {
                // A local table is meant to win; a clash of two imports is reported.
                if at >= local {
                    self.notes.push(format!("{name_of_file}: {}: imported before, ignored", server.name));
                }
                continue;
            }
            taken.push(server.name.clone());
            let (name, required) = (server.name.clone(), server.required());
            match server.read(&from) {
                Ok(raw) if !raw.enabled => {
                    self.notes.push(format!("{name_of_file}: {name}: disabled, skipped"));
                }
                // What `toolcrib install` has written for this file: it would start itself.
                Ok(raw) if is_entry_for(&raw, origin, self.env) => {
                    tracing::debug!(%name, file = name_of_file, "the entry for this configuration is no server of it");
                }
                Ok(raw) => self.add(raw),
                Err(error) => {
                    let (source, server) = (from.file.clone(), Err(Arc::new(error)));
                    let entry = ServerEntry { required, source, server, written: None };
                    self.servers.insert(name, entry);
                }
            }
        }
        Ok(())
    }
}

/// Whether a server of another program's file is toolcrib with the configuration at `origin`.
fn is_entry_for(server: &RawServer, origin: &SourceLocation, env: &Env) -> bool {
    let RawKind::Command { command, args, .. } = &server.kind else { return false };
    let mut words = args.iter().map(|word| word.value.as_str());
    let is_ours = Path::new(&command.value).file_name().is_some_and(|name| name == "toolcrib");
    if !is_ours || !words.any(|word| word == "connect") {
        return false;
    }
    let mut words =
        args.iter().map(|word| word.value.as_str()).skip_while(|word| !matches!(*word, "--config" | "-c"));
    let Some(named) = words.nth(1) else { return true };
    let named = env.resolve(&server.origin.folder, named);
    let real = |file: &Path| {
        let folder = file.parent()?.canonicalize().ok()?;
        file.canonicalize().ok().or_else(|| Some(folder.join(file.file_name()?)))
    };
    origin.file.as_deref().is_some_and(|own| real(own).is_some_and(|own| real(&named) == Some(own)))
}
