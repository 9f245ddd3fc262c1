//! The pass rate of the scored tasks, with its confidence interval.

/// A pass rate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct PassRate {
    /// Passed tasks among the judged ones, 0 to 1.
    pub value: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl PassRate {
    /// The rate of `passed` tasks among `judged` ones, with Wilson's score interval; nothing where none was judged.
    pub fn new(passed: usize, judged: usize) -> Option<Self> {
        if judged == 0 {
            return None;
        }
        // The 97.5 % quantile of the normal distribution.
        let z = 1.959_963_984_540_054_f64;
        let (n, value) = (judged as f64, passed as f64 / judged as f64);
        let middle = value + z * z / (2.0 * n);
        let reach = z * (value * (1.0 - value) / n + z * z / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z * z / n;
        let (low, high) = (((middle - reach) / scale).max(0.0), ((middle + reach) / scale).min(1.0));
        Some(Self { value, low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables() {
        // Newcombe 1998, table I: 81 of 263 and 0 of 20.
        let PassRate { low, high, .. } = PassRate::new(81, 263).unwrap();
        assert!((low - 0.2553).abs() < 1e-4 && (high - 0.3662).abs() < 1e-4, "{low} {high}");
        let PassRate { low, high, .. } = PassRate::new(0, 20).unwrap();
        assert!(low.abs() < 1e-9 && (high - 0.1611).abs() < 1e-4, "{low} {high}");
        assert_eq!(PassRate::new(0, 0), None);
    }
}
