//! The limits of an endpoint as others see them, who share them with further programs.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{
    LlmClient,
    client::Backend,
    pipeline::gate::{Bounds, Gate},
};
use crate::text::short_hex;

/// Limits of one endpoint, or parts of them. `None`: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointLimits {
    /// Requests at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Requests in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Tokens in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

impl EndpointLimits {
    /// The same limits with zero in place of each number.
    #[must_use]
    pub fn nothing(self) -> Self {
        let none = |limit: Option<u64>| limit.map(|_| 0);
        Self { in_flight: none(self.in_flight), requests: none(self.requests), tokens: none(self.tokens) }
    }

    /// The least of each limit.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            in_flight: least(self.in_flight, other.in_flight),
            requests: least(self.requests, other.requests),
            tokens: least(self.tokens, other.tokens),
        }
    }
}

/// An endpoint with limits.
#[derive(Clone, Debug)]
pub struct LimitedEndpoint {
    /// The same for all programs that use the endpoint: a digest of its address, its model, its keys and headers.
    pub id: String,
    /// The limits themselves.
    pub limits: EndpointLimits,
    gate: Gate,
}

impl LimitedEndpoint {
    /// So much of its limits counts from now on. Requests that are under way end all the same.
    pub fn allow(&self, part: EndpointLimits) {
        self.gate.allow(part);
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u64 {
        self.gate.stats().in_flight as u64
    }
}

impl From<Bounds> for EndpointLimits {
    fn from(bounds: Bounds) -> Self {
        Self {
            in_flight: bounds.in_flight.map(|limit| limit.get() as u64),
            requests: bounds.requests.map(Into::into),
            tokens: bounds.tokens.map(Into::into),
        }
    }
}

impl LlmClient {
    /// Its endpoints that have limits, and those of the clients that it asks; each once.
    #[doc(hidden)]
    pub fn limited_endpoints(&self) -> Vec<LimitedEndpoint> {
        let mut found = match &self.inner.backend {
            Backend::Router(router) => router.members.iter().flat_map(Self::limited_endpoints).collect(),
            Backend::Model(_) => self.limited_endpoint().into_iter().collect::<Vec<_>>(),
        };
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found.dedup_by(|a, b| a.id == b.id);
        found
    }

    fn limited_endpoint(&self) -> Option<LimitedEndpoint> {
        let endpoint = self.inner.backend.endpoint()?;
        let limits = EndpointLimits::from(self.inner.gate.bounds());
        let id = short_hex(Sha256::new_with_prefix(endpoint.endpoint()));
        (limits != EndpointLimits::default()).then(|| LimitedEndpoint {
            id,
            limits,
            gate: self.inner.gate.clone(),
        })
    }
}
