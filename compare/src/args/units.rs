//! Values with a unit, and percentages.

use std::time::Duration;

use super::BurstLength;

/// A number and one of these, as in `10ms` or `2.5s`.
const UNITS: [(&str, f64); 3] = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
/// Longer than any setting wants, and far from overflow.
const LONGEST_S: f64 = 3_600.0;

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.strip_prefix(digits).unwrap_or_default();
    let number: f64 = digits
        .parse()
        .map_err(|_| format!("it must be a number with us, ms or s, as in 10ms, got `{text}`"))?;
    let Some((_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(format!("its unit must be us, ms or s, as in 10ms, got `{unit}`"));
    };
    let seconds = number * factor;
    if !(0.0..=LONGEST_S).contains(&seconds) {
        return Err(format!("it must be between 0s and {LONGEST_S}s, got {text}"));
    }
    // Rounded to nanoseconds, so that 10ms is exactly that.
    Ok(Duration::from_nanos((seconds * 1e9).round() as u64))
}

/// Time between messages.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if (Duration::from_micros(100)..=Duration::from_secs(10)).contains(&time) {
        return Ok(time);
    }
    Err(format!("it must be between 100us and 10s, got {text}"))
}

/// A number of packets, or a time.
pub(crate) fn burst(text: &str) -> Result<BurstLength, String> {
    if let Ok(packets) = text.parse() {
        return Ok(BurstLength::Packets(packets));
    }
    let time = duration(text).map(BurstLength::Time);
    time.map_err(|_| format!("it must be packets, as in 3, or a time, as in 25ms, got {text}"))
}

/// A ratio, in thousandths.
pub(crate) fn per_mille(text: &str) -> Result<u16, String> {
    match text.parse::<f64>() {
        Ok(number) if (1.0..=4.0).contains(&number) => Ok((number * 1e3).round() as u16),
        _ => Err(format!("it must be between 1.0 and 4.0, got {text}")),
    }
}

pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=100.0).contains(&number) => Ok(number),
        _ => Err(format!("it must be between 0 and 100 (percent), got {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        let valid = [
            ("10ms", Duration::from_millis(10)),
            ("600ms", Duration::from_millis(600)),
            ("2.5s", Duration::from_millis(2_500)),
            ("250us", Duration::from_micros(250)),
            ("0s", Duration::ZERO),
        ];
        for (text, expected) in valid {
            assert_eq!(duration(text), Ok(expected), "{text}");
        }
        for text in ["", "10", "ms", "10 ms", "10m", "-1ms", "nans", "1e9s", "10msms"] {
            let error = duration(text).expect_err(text);
            assert!(error.contains(" must be "), "{text}: {error}");
        }
    }

    #[test]
    fn interval_and_percent_errors_name_their_range() {
        assert_eq!(interval("100us"), Ok(Duration::from_micros(100)));
        assert!(interval("99us").unwrap_err().contains("between 100us and 10s"));
        assert!(interval("11s").unwrap_err().contains("between 100us and 10s"));
        assert_eq!(percent("2.5"), Ok(2.5));
        for text in ["x", "-1", "100.1", "nan", "5%"] {
            assert!(percent(text).unwrap_err().contains("between 0 and 100"), "{text}");
        }
    }
}
