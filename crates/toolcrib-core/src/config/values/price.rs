//! Prices of the tokens of a model.

use serde::{Deserialize, Serialize};

use crate::task::{Usage, score::amount};

/// Number of tokens that a price is for.
const MILLION: f64 = 1e6;

/// Prices in US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TokenPrice {
    /// Price of tokens of a prompt.
    #[serde(rename = "in", deserialize_with = "amount")]
    pub input: f64,
    /// Price of generated tokens.
    #[serde(rename = "out", deserialize_with = "amount")]
    pub output: f64,
    /// Price of tokens of a prompt that are read from the server's cache.
    #[serde(deserialize_with = "amount")]
    pub cached: f64,
    /// Price of tokens of a prompt that are written to the server's cache.
    #[serde(deserialize_with = "amount")]
    pub cache_write: f64,
}

impl TokenPrice {
    /// The same price for all tokens of a prompt.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, cached: input, cache_write: input }
    }

    /// The price of these tokens, in US dollars.
    pub fn cost(&self, usage: &Usage) -> f64 {
        let plain = usage.input.saturating_sub(usage.cached).saturating_sub(usage.cache_write);
        let part = |tokens: u64, price: f64| tokens as f64 * price;
        let sum = part(plain, self.input)
            + part(usage.cached, self.cached)
            + part(usage.cache_write, self.cache_write)
            + part(usage.output, self.output);
        sum / MILLION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_price_is_no_credit() {
        let price = |text: &str| serde_json::from_str::<TokenPrice>(text);
        let good = r#"{"in": 3, "out": 15.0, "cached": 0, "cache_write": 0}"#;
        assert_eq!(
            price(good).unwrap(),
            TokenPrice { cached: 0.0, cache_write: 0.0, ..TokenPrice::new(3.0, 15.0) }
        );
        for bad in [("3,", "-3,"), ("15.0", "-1e300"), ("d\": 0", "d\": -0.1"), ("e\": 0", "e\": -1")] {
            let error = price(&good.replace(bad.0, bad.1)).unwrap_err().to_string();
            assert!(error.contains("is no amount of money"), "{bad:?}: {error}");
        }
        assert!(price(&good.replace("15.0", "1e999")).is_err());
        let cost = |text: &str| {
            serde_json::from_str::<crate::task::ExtractionReport>(text).map(|report| report.cost_usd)
        };
        assert_eq!(cost("{}").unwrap(), None);
        assert_eq!(cost(r#"{"cost_usd": 0.5}"#).unwrap(), Some(0.5));
        assert!(cost(r#"{"cost_usd": -1e6}"#).is_err());
    }

    #[test]
    fn each_kind_of_token_has_its_price() {
        let price = TokenPrice { cached: 0.3, cache_write: 3.75, ..TokenPrice::new(3.0, 15.0) };
        let usage = Usage {
            input: 1_000_000,
            cached: 400_000,
            cache_write: 100_000,
            output: 200_000,
            reasoning: 150_000,
        };
        // 500,000 at 3.00, 400,000 at 0.30, 100,000 at 3.75, 200,000 at 15.00; reasoning is part of what is generated.
        assert!((price.cost(&usage) - (1.5 + 0.12 + 0.375 + 3.0)).abs() < 1e-12);
        assert!(price.cost(&Usage::default()).abs() < 1e-12);
        // A server may count more in its cache than in the prompt.
        let odd = Usage { input: 1, cached: 1_000_000, ..Usage::default() };
        assert!((price.cost(&odd) - 0.3).abs() < 1e-12);
    }
}
