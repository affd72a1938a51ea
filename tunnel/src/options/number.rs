//! Numbers and truth values as Go's `strconv` reads them.

/// Reads an integer in base 0: decimal, `0x`, `0b`, `0o`, a leading zero for octal, with a sign and
/// underscores between digits (`strconv.ParseInt(text, 0, 64)`).
pub(super) fn parse_int(text: &str) -> Option<i64> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefix = |chars: &str| rest.len() > 1 && chars.contains(&rest[1..2]);
    let (radix, digits) = match rest.as_bytes().first()? {
        b'0' if rest.is_char_boundary(2.min(rest.len())) && prefix("xX") => (16, &rest[2..]),
        b'0' if rest.is_char_boundary(2.min(rest.len())) && prefix("bB") => (2, &rest[2..]),
        b'0' if rest.is_char_boundary(2.min(rest.len())) && prefix("oO") => (8, &rest[2..]),
        b'0' if rest.len() > 1 => (8, &rest[1..]),
        _ => (10, rest),
    };
    // An underscore is between two digits, or between the prefix and a digit.
    let bytes = digits.as_bytes();
    let prefixed = digits.len() < rest.len();
    let misplaced = bytes.last() == Some(&b'_')
        || (bytes.first() == Some(&b'_') && !prefixed)
        || bytes.windows(2).any(|pair| pair == b"__");
    let digits: String = digits.chars().filter(|&digit| digit != '_').collect();
    if misplaced || digits.is_empty() || digits.starts_with(['+', '-']) {
        return None;
    }
    let digits = if negative { format!("-{digits}") } else { digits };
    i64::from_str_radix(&digits, radix).ok()
}

/// Reads a truth value (`strconv.ParseBool`).
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_in_base_zero() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("+10", 10),
            ("-1", -1),
            ("0x10", 16),
            ("-0X1f", -31),
            ("010", 8),
            ("0o17", 15),
            ("0O17", 15),
            ("0b101", 5),
            ("0B1", 1),
            ("1_000", 1_000),
            ("0x_ff", 255),
            ("0_7", 7),
            ("00", 0),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_int(text), Some(value), "{text}");
        }
    }

    #[test]
    fn malformed_integers_are_rejected() {
        for text in [
            "",
            "-",
            "+",
            " 1",
            "1 ",
            "1.5",
            "1e3",
            "08",
            "0x",
            "0b2",
            "0o",
            "_1",
            "1_",
            "1__0",
            "--1",
            "0x-1",
            "0xx1",
            "0é",
            "é",
            "9223372036854775808",
            "auto",
            "０",
        ] {
            assert_eq!(parse_int(text), None, "{text:?}");
        }
    }

    #[test]
    fn truth_values_equal_gos() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(parse_bool(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(parse_bool(text), Some(false), "{text}");
        }
        for text in ["", "yes", "tRUE", "2", "auto"] {
            assert_eq!(parse_bool(text), None, "{text}");
        }
    }
}
