//! How workers share the limits of an endpoint: each claims a part, and all claims together are never more than the limit.
//!
//! The registry gives all entries one order. A worker that wants more writes its claim first, and takes what it claimed when
//! its own entry has come back: it has seen all claims that were written before then, and who writes later sees this one.

use serde::{Deserialize, Serialize};

use crate::llm::EndpointLimits;

/// A worker's entry about an endpoint: the limits in its configuration, and its claim on a part of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EndpointClaim {
    pub limits: EndpointLimits,
    pub claims: EndpointLimits,
}

/// The part of an endpoint that the worker `own` may claim beside the claims of `others`, which are named by worker. Nothing
/// where there is no limit.
pub(super) fn allowed(own: (&str, EndpointLimits), others: &[(&str, EndpointClaim)]) -> EndpointLimits {
    let of = |part: fn(&EndpointLimits) -> Option<u64>| {
        let others = others.iter().filter_map(|(worker, other)| {
            Some((*worker, part(&other.limits)?, part(&other.claims).unwrap_or_default()))
        });
        Some(allowed_part((own.0, part(&own.1)?), &others.collect::<Vec<_>>()))
    };
    EndpointLimits {
        in_flight: of(|limits| limits.in_flight),
        requests: of(|limits| limits.requests),
        tokens: of(|limits| limits.tokens),
    }
}

/// Whether so many workers share it that this one has no part in it.
pub(super) fn has_no_part((own, limits): (&str, EndpointLimits), others: &[(&str, EndpointClaim)]) -> bool {
    let free: Vec<_> = others
        .iter()
        .map(|(worker, other)| (*worker, EndpointClaim { claims: EndpointLimits::default(), ..*other }))
        .collect();
    let EndpointLimits { in_flight, requests, tokens } = allowed((own, limits), &free);
    [in_flight, requests, tokens].contains(&Some(0))
}

/// The same for one limit. `others`: name, limit, claim.
fn allowed_part((own, limit): (&str, u64), others: &[(&str, u64, u64)]) -> u64 {
    // All have the same limit, unless their configurations differ.
    let limit = others.iter().map(|(_, limit, _)| *limit).fold(limit, u64::min);
    let workers = others.len() as u64 + 1;
    let part = |worker: &str| {
        let before =
            others.iter().map(|(other, ..)| *other).chain([own]).filter(|other| *other < worker).count();
        limit / workers + u64::from((before as u64) < limit % workers)
    };
    // One that has more than its part gives it back when its requests have ended.
    let taken: u64 = others.iter().map(|(worker, _, claim)| part(worker).max(*claim)).sum();
    part(own).min(limit.saturating_sub(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(limit: u64, claim: u64) -> EndpointClaim {
        let of = |in_flight| EndpointLimits { in_flight: Some(in_flight), ..EndpointLimits::default() };
        EndpointClaim { limits: of(limit), claims: of(claim) }
    }

    fn in_flight(own: (&str, u64), others: &[(&str, EndpointClaim)]) -> u64 {
        allowed((own.0, claim(own.1, 0).limits), others).in_flight.unwrap()
    }

    #[test]
    fn parts_come_to_the_limit() {
        for limit in [1, 2, 6, 7, 100] {
            for workers in 1..9_usize {
                let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
                let sum: u64 = (0..workers)
                    .map(|own| {
                        let others: Vec<_> =
                            (0..workers).filter(|n| *n != own).map(|n| (names[n], claim(limit, 0))).collect();
                        in_flight((names[own], limit), &others)
                    })
                    .sum();
                assert_eq!(sum, limit, "{workers} workers");
            }
        }
        assert_eq!(
            allowed(("a", EndpointLimits::default()), &[("b", claim(6, 6))]),
            EndpointLimits::default()
        );
    }

    #[test]
    fn a_new_worker_waits_until_others_have_given_back() {
        assert_eq!(in_flight(("b", 6), &[("a", claim(6, 6))]), 0);
        assert_eq!(in_flight(("b", 6), &[("a", claim(6, 4))]), 2);
        assert_eq!(in_flight(("b", 6), &[("a", claim(6, 3))]), 3);
        // The part of a third one is kept free.
        assert_eq!(in_flight(("b", 6), &[("a", claim(6, 2)), ("c", claim(6, 0))]), 2);
        // The strictest configuration counts.
        assert_eq!(in_flight(("b", 100), &[("a", claim(6, 3))]), 3);
        let limits = claim(1, 0).limits;
        assert!(has_no_part(("b", limits), &[("a", claim(1, 0))]));
        assert!(!has_no_part(("a", limits), &[("b", claim(1, 1))]));
    }
}
