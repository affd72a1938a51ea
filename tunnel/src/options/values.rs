//! Values of options as text, each with its source; stronger sources win. Numbers and truth values are
//! read as Go's `strconv` reads them.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use zeroize::Zeroizing;

use super::table::{Opt, Role};

/// Environment variables by name.
pub type Environment = BTreeMap<String, String>;

/// Source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The default of this option.
    Default(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// This option on the command line.
    CommandLine(&'static str),
    /// This option in SS_PLUGIN_OPTIONS.
    PluginOptions(&'static str),
    /// This option in a file.
    File(&'static str, PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default(name) | Self::CommandLine(name) if name.len() == 1 => {
                write!(f, "-{name}")
            }
            Self::Default(name) | Self::CommandLine(name) => write!(f, "--{name}"),
            Self::Variable(name) => f.write_str(name),
            Self::PluginOptions(name) => write!(f, "{name} in SS_PLUGIN_OPTIONS"),
            Self::File(name, path) => write!(f, "{name:?} in {}", path.display()),
        }
    }
}

/// The given value of each option of a tunnel, by name. `Debug` does not show the key.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Values {
    values: BTreeMap<&'static str, Value>,
}

/// One value. Without `Debug` and wiped on drop, since it may be the key.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) text: Zeroizing<String>,
    pub(super) place: Place,
}

impl Values {
    /// Sets a value, replacing an earlier one.
    pub(super) fn set(&mut self, option: &Opt, text: impl Into<String>, place: Place) {
        self.values.insert(option.name, Value { text: Zeroizing::new(text.into()), place });
    }

    /// Adds the values of `stronger`.
    pub(super) fn override_with(&mut self, stronger: Self) {
        self.values.extend(stronger.values);
    }

    /// Replaces the option's given value by the one in `other`, which may be none.
    pub(super) fn replace_from(&mut self, other: &Self, name: &'static str) {
        match other.values.get(name) {
            Some(value) => drop(self.values.insert(name, value.clone())),
            None => drop(self.values.remove(name)),
        }
    }

    /// Returns the given value of the option.
    pub(super) fn written(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Returns the value, or the default of the role.
    pub(super) fn value(&self, option: &Opt, role: Role) -> Value {
        self.written(option.name).cloned().unwrap_or_else(|| Value {
            text: option.default_for(role).to_owned().into(),
            place: Place::Default(option.name),
        })
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.values.iter().map(|(&name, value)| {
            let text = if name == "key" { "(not shown)" } else { value.text.as_str() };
            (name, (text, &value.place))
        });
        f.debug_map().entries(shown).finish()
    }
}

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
