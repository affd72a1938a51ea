//! The log of the library on standard error, as `RUST_LOG=kcpx=debug` asks for it.

use std::io::stderr;

use tracing_subscriber::EnvFilter;

/// Without `RUST_LOG` errors alone.
pub(crate) fn to_stderr() {
    let filter = EnvFilter::from_default_env();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).init();
}
