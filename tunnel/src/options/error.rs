//! What is wrong with options, in one sentence that names what to write instead.

use std::io;
use std::path::PathBuf;

use kcpx::ConfigError;

use super::values::Place;
use crate::settings::AddressError;

/// Why no settings can be made. Each is one sentence; the program ends with status 2 then, before
/// it opens a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The command line does not parse, or asks for the help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// Neither the command line nor the file says which side to be.
    #[error(
        "the role is missing: write `kcpx-tunnel client` or `kcpx-tunnel server`, each with --help for \
         its options"
    )]
    NoRole,
    /// The first argument is no role.
    #[error("{given:?} is not a role: {}", suggestion(given))]
    UnknownRole {
        /// The argument.
        given: String,
    },
    /// A role that is neither client nor server.
    #[error("{1} {0:?} is not allowed: use \"client\" or \"server\"")]
    Role(String, Place),
    /// The argument of this number is not UTF-8. It may be the key, and is not shown.
    #[error("argument {0} is not UTF-8")]
    NotUtf8(usize),
    /// A value outside what is allowed.
    #[error("{place} {value} is not allowed: use {allowed}", value = one_line(value))]
    Value {
        /// Where it was written.
        place: Place,
        /// The value; of a key only its type.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// An address that does not parse.
    #[error("{place}: {error}")]
    Address {
        /// Where it was written.
        place: Place,
        /// What is wrong.
        error: AddressError,
    },
    /// An option of kcptun that this program does not have.
    #[error("{name} is not supported: {instead}")]
    NotSupported {
        /// The option.
        name: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// A name that is no option, in SS_PLUGIN_OPTIONS.
    #[error("{0:?} in SS_PLUGIN_OPTIONS is not an option: --help lists them")]
    UnknownPluginOption(String),
    /// The part of this number in SS_PLUGIN_OPTIONS is no option. A key that has a semicolon in it
    /// ends there, so that the part may belong to the key, and is not shown.
    #[error(
        "part {0} of SS_PLUGIN_OPTIONS is not an option: --help lists them; write \\; for a \
         semicolon in the key"
    )]
    UnknownPartBehindKey(usize),
    /// Variables of SIP003 that do not make addresses.
    #[error("{name}={value:?} is not allowed: use {allowed}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// The file of `-c` cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The file of `-c` is not JSON.
    #[error("{path} is not JSON: {error}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// The file of `-c` is JSON of another shape.
    #[error("{path}: {wrong}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is allowed.
        wrong: String,
    },
    /// An option of the process that has several values.
    #[error(
        "{0:?} differs between the tunnels: the process has it once, so write it in one of them"
    )]
    Differs(&'static str),
    /// Values that do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The role that was probably meant: both begin with another letter.
fn suggestion(given: &str) -> &'static str {
    match given.chars().next() {
        Some('c' | 'C') => "did you mean `kcpx-tunnel client`?",
        Some('s' | 'S') => "did you mean `kcpx-tunnel server`?",
        _ => "write `kcpx-tunnel client` or `kcpx-tunnel server`",
    }
}

/// The text with its control characters escaped, so that an error stays one line.
fn one_line(text: &str) -> String {
    let shown = text.chars().map(|char| match char {
        char if char.is_control() => char.escape_default().to_string(),
        char => char.to_string(),
    });
    shown.collect()
}
