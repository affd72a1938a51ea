//! The seeds that a test runs, and the environment variables that choose them.

use std::ops::Range;

/// Repeats one seed.
const SEED: &str = "KCP_TEST_SEED";
/// Sets the number of seeds.
const COUNT: &str = "KCP_TEST_SEEDS";
/// The first seed of tests that run other seeds for each commit.
const FIRST: &str = "KCPX_SEED";

/// Seeds in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// The environment names this one seed: tests print more about it.
    pub(crate) is_chosen: bool,
}

impl Seeds {
    /// `default`, unless `KCP_TEST_SEED` names one seed or `KCP_TEST_SEEDS` their number.
    pub(crate) fn or(default: Range<u64>) -> Self {
        let (seed, count) = (number(SEED), number(COUNT));
        assert_ne!(count, Some(0), "{COUNT} must be at least 1, got 0");
        Self {
            first: seed.unwrap_or(default.start),
            count: if seed.is_some() { 1 } else { count.unwrap_or(default.end - default.start) },
            is_chosen: seed.is_some(),
        }
    }

    /// `count` seeds from `KCPX_SEED` on, which is different for each commit in CI. `KCP_TEST_SEED` and
    /// `KCP_TEST_SEEDS` apply as in [`Self::or`].
    #[cfg(feature = "_testkit")]
    pub(crate) fn of_commit(count: u64) -> Self {
        let chosen = Self::or(0..count);
        let first = if chosen.is_chosen { None } else { number(FIRST) };
        Self { first: first.unwrap_or(chosen.first), ..chosen }
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |index| self.first.wrapping_add(index))
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var_os(variable)?;
    Some(parse(variable, &text.to_string_lossy()).unwrap_or_else(|error| panic!("{error}")))
}

fn parse(variable: &str, text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let allowed = "a decimal number, or a hexadecimal one with 0x, below 2^64";
    number.map_err(|_| format!("{variable} must be {allowed}, got {text:?}"))
}

#[test]
fn seed_is_decimal_or_hexadecimal() {
    assert_eq!(parse(SEED, "17"), Ok(17));
    assert_eq!(parse(SEED, "0xfFffFFffFFffFFff"), Ok(u64::MAX));
}

#[test]
fn seed_that_is_no_number_is_an_error_with_variable_range_and_value() {
    for text in ["", "seven", "12ab", "-1", "0x", "18446744073709551616", "0x10000000000000000"] {
        let error = parse(FIRST, text).unwrap_err();
        let expected = format!(
            "KCPX_SEED must be a decimal number, or a hexadecimal one with 0x, below 2^64, got {text:?}"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn seeds_wrap_at_the_largest_number() {
    let seeds = Seeds { first: u64::MAX, count: 3, is_chosen: false };
    assert_eq!(seeds.iter().collect::<Vec<_>>(), [u64::MAX, 0, 1]);
}
