//! Latencies of calls in little memory: a histogram whose bucket widths grow with the latency.

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

/// Buckets of each power of two: what is read back is off by less than a sixteenth.
const PARTS: usize = 8;
/// Buckets in all: up to 2^38 microseconds, three days.
const BUCKETS: usize = 36 * PARTS;

/// Times of calls, counted.
pub(super) struct Latency([AtomicU32; BUCKETS]);

impl Default for Latency {
    fn default() -> Self {
        Self([const { AtomicU32::new(0) }; BUCKETS])
    }
}

impl Latency {
    pub(super) fn add(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.0[bucket(micros)].fetch_add(1, Relaxed);
    }

    /// The time within which each of `shares` of all calls ended; `None` if there were none.
    pub(super) fn within<const N: usize>(&self, shares: [f64; N]) -> [Option<Duration>; N] {
        let counts: Vec<u64> = self.0.iter().map(|count| u64::from(count.load(Relaxed))).collect();
        let total: u64 = counts.iter().sum();
        shares.map(|share| {
            let mut left = total as f64 * share;
            let last = counts.iter().position(|count| {
                left -= *count as f64;
                *count > 0 && left <= 0.0
            });
            last.map(|bucket| Duration::from_micros(middle(bucket)))
        })
    }
}

/// Below [`PARTS`] each number has its own; above, the leading bits decide.
fn bucket(micros: u64) -> usize {
    let parts = PARTS as u64;
    if micros < parts {
        return usize::try_from(micros).unwrap_or(0);
    }
    let shift = micros.ilog2() - parts.ilog2();
    let part = (micros >> shift) - parts;
    let index = (u64::from(shift) + 1) * parts + part;
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The time in the middle of a bucket, in microseconds.
fn middle(bucket: usize) -> u64 {
    let (octave, part) = ((bucket / PARTS) as u64, (bucket % PARTS) as u64);
    match octave {
        0 => part,
        octave => {
            let shift = octave - 1;
            ((PARTS as u64 + part) << shift) + ((1 << shift) >> 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn latencies_are_read_back_approximately(micros in 0_u64..1 << 38) {
            let read = middle(bucket(micros));
            prop_assert!(read.abs_diff(micros) * 16 <= micros, "{micros} reads as {read}");
        }
    }

    #[test]
    fn latency_shares_match_the_calls() {
        let latency = Latency::default();
        assert_eq!(latency.within([0.5, 0.95]), [None, None]);
        for millis in 1..=100 {
            latency.add(Duration::from_millis(millis));
        }
        latency.add(Duration::MAX);
        let [half, most] = latency.within([0.5, 0.95]).map(|time| time.unwrap().as_millis());
        assert!((47..=53).contains(&half) && (90..=102).contains(&most), "{half} {most}");
    }
}
