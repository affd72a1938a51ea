//! Wrong arguments that the command line parser lets pass.

/// The value, or the end of the process: status 2 after one sentence that leads to the help.
pub(crate) fn checked<T>(value: anyhow::Result<T>) -> T {
    value.unwrap_or_else(|error| {
        eprintln!("error: {error:#}; --help explains the arguments");
        std::process::exit(2)
    })
}
