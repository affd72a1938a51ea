//! Errors of options: one sentence each, with what to write instead.

use std::io;
use std::path::PathBuf;

use kcpx::ConfigError;

use super::values::Place;
use crate::settings::AddressError;

/// Why no settings can be made. Each is one sentence; the program then ends with status 2 before it
/// opens a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The command line does not parse, or requests the help or the version.
    #[error(transparent)]
    CommandLine(#[from] clap::Error),
    /// Neither the command line nor the file names the role.
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
    /// A role other than client and server.
    #[error("{1} {0:?} is not allowed: use \"client\" or \"server\"")]
    Role(String, Place),
    /// The argument of this number is not UTF-8. It is not shown, since it may be the key.
    #[error("argument {0} is not UTF-8")]
    NotUtf8(usize),
    /// A value that is not allowed.
    #[error("{place} {value} is not allowed: use {allowed}", value = one_line(value))]
    Value {
        /// Its source.
        place: Place,
        /// The value; for a key only its type.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// An address that does not parse.
    #[error("{place}: {error}")]
    Address {
        /// Its source.
        place: Place,
        /// The reason.
        error: AddressError,
    },
    /// An option of kcptun that this program does not have.
    #[error("{name} is not supported: {instead}")]
    NotSupported {
        /// The option.
        name: &'static str,
        /// The alternative.
        instead: &'static str,
    },
    /// An unknown name in SS_PLUGIN_OPTIONS.
    #[error("{0:?} in SS_PLUGIN_OPTIONS is not an option: --help lists them")]
    UnknownPluginOption(String),
    /// The part of this number in SS_PLUGIN_OPTIONS is no option. It is not shown: a key with a
    /// semicolon ends there, so the part may belong to the key.
    #[error(
        "part {0} of SS_PLUGIN_OPTIONS is not an option: --help lists them; write \\; for a \
         semicolon in the key"
    )]
    UnknownPartBehindKey(usize),
    /// SIP003 variables that form no address.
    #[error("{name}={value:?} is not allowed: use {allowed}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The file of `-c` cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file of `-c` is not JSON.
    #[error("{path} is not JSON: {error}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Position and reason.
        error: serde_json::Error,
    },
    /// The file of `-c` is JSON of another structure.
    #[error("{path}: {wrong}", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The fault, and what is allowed.
        wrong: String,
    },
    /// An option of the process with several values.
    #[error(
        "{0:?} differs between the tunnels: the process has it once, so write it in one of them"
    )]
    Differs(&'static str),
    /// Values that do not fit together.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The role that was probably meant: their first letters differ.
fn suggestion(given: &str) -> &'static str {
    match given.chars().next() {
        Some('c' | 'C') => "did you mean `kcpx-tunnel client`?",
        Some('s' | 'S') => "did you mean `kcpx-tunnel server`?",
        _ => "write `kcpx-tunnel client` or `kcpx-tunnel server`",
    }
}

/// Escapes control characters, so that an error stays one line.
fn one_line(text: &str) -> String {
    let shown = text.chars().map(|char| match char {
        char if char.is_control() => char.escape_default().to_string(),
        char => char.to_string(),
    });
    shown.collect()
}
