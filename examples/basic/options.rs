//! A short command line, without a crate that parses it.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::ops::RangeInclusive;
use std::process::exit;
use std::str::FromStr;

/// Exit status after wrong arguments.
const USAGE: i32 = 2;

/// The arguments that are not taken yet.
pub(crate) struct Options {
    left: Vec<String>,
}

impl Options {
    /// The arguments of this process; `--help` among them prints `help` and ends it.
    pub(crate) fn new(help: &str) -> Self {
        let left: Vec<_> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        if left.iter().any(|arg| arg == "--help" || arg == "-h") {
            print!("{help}");
            exit(0);
        }
        Self { left }
    }

    /// The value of `--name VALUE` or `--name=VALUE`.
    pub(crate) fn value(&mut self, name: &str) -> Option<String> {
        let is_name = |arg: &String| {
            arg.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        let place = self.left.iter().position(is_name)?;
        let arg = self.left.remove(place);
        if let Some((_, value)) = arg.split_once('=') {
            return Some(value.to_owned());
        }
        if place == self.left.len() {
            refuse(&format!("{name} needs a value"));
        }
        Some(self.left.remove(place))
    }

    /// The number behind `--name`, or the default without it.
    pub(crate) fn number<T>(&mut self, name: &str, default: T, allowed: RangeInclusive<T>) -> T
    where
        T: FromStr + PartialOrd + std::fmt::Display,
    {
        let Some(value) = self.value(name) else { return default };
        let number = value.parse().ok().filter(|number| allowed.contains(number));
        number.unwrap_or_else(|| {
            let (least, most) = (allowed.start(), allowed.end());
            refuse(&format!("{name} must be a number between {least} and {most}, got {value:?}"))
        })
    }

    /// The next argument that is no option.
    pub(crate) fn positional(&mut self) -> Option<String> {
        self.reject_options();
        (!self.left.is_empty()).then(|| self.left.remove(0))
    }

    /// The same, which must be there.
    pub(crate) fn required(&mut self, what: &str) -> String {
        self.positional().unwrap_or_else(|| refuse(&format!("{what} is missing")))
    }

    /// Rejects what is left.
    pub(crate) fn end(&self) {
        self.reject_options();
        if let Some(arg) = self.left.first() {
            refuse(&format!("unexpected argument {arg:?}"));
        }
    }

    fn reject_options(&self) {
        if let Some(arg) = self.left.iter().find(|arg| arg.starts_with('-')) {
            refuse(&format!("unknown option {arg:?}"));
        }
    }
}

/// Ends the process because of a wrong argument.
pub(crate) fn refuse(sentence: &str) -> ! {
    eprintln!("error: {sentence}; --help explains the arguments");
    exit(USAGE)
}
