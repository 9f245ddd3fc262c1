//! `cache` and `batch` of `[llm]`.

use std::num::NonZeroUsize;

use super::super::section::Section;
use crate::config::{BatchConfig, CacheConfig, LlmApi, LlmConfig};
use crate::error::Result;

pub(in crate::config) const BATCH: &[&str] = &["size", "interval", "width"];
pub(in crate::config) const CACHE: &[&str] = &["size", "ttl", "sampled", "single_flight"];

/// Read last: whether they have any effect depends on the other settings.
pub(super) fn read(llm: &Section<'_>, request: &mut LlmConfig) -> Result<()> {
    if let Some(table) = llm.table("cache", CACHE)? {
        let built_in = CacheConfig::default();
        let cache = CacheConfig {
            size: table.number("size", 1)?.and_then(NonZeroUsize::new).unwrap_or(built_in.size),
            ttl: table.duration("ttl")?.unwrap_or(built_in.ttl),
            sampled: table.flag("sampled")?.unwrap_or(built_in.sampled),
            single_flight: table.flag("single_flight")?.unwrap_or(built_in.single_flight),
        };
        if !cache.sampled && request.temperature != Some(0.0) && request.seed.is_none() {
            let message = "caches nothing: answers are sampled unless temperature is 0 or a seed is set";
            let help = "set temperature = 0, or sampled = true in cache to cache sampled answers";
            return Err(llm.key_error("cache", message, Some(help)));
        }
        request.cache = Some(cache);
    }
    if let Some(table) = llm.table("batch", BATCH)? {
        let built_in = BatchConfig::default();
        request.batch = BatchConfig {
            size: table.number("size", 1)?.and_then(NonZeroUsize::new).unwrap_or(built_in.size),
            interval: table.grace("interval")?.unwrap_or(built_in.interval),
            width: table.limit("width", &[("unlimited", None)])?.unwrap_or(built_in.width),
        };
        if request.batch.size > built_in.size && request.api != LlmApi::Completions {
            let message = format!("is not known to api = \"{}\"", request.api.name());
            let help =
                "use \"completions\", the one format with several prompts in a request, or leave it at 1";
            return Err(table.key_error("size", message, Some(help)));
        }
    }
    Ok(())
}
