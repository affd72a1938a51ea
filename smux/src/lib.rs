//! smux versions 1 and 2: many streams over one connection, wire-compatible with xtaci/smux.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
// Not in this crate's own tests, which cut numbers short.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::disallowed_macros,
        clippy::unwrap_used
    )
)]

mod config;
mod core;
mod driver;
mod error;
#[cfg(feature = "_testkit")]
#[doc(hidden)]
pub mod fuzz;
mod session;
mod shared;
mod stats;
mod stream;

pub use config::{Config, Version};
pub use driver::Driver;
pub use error::{ConfigError, Error, ProtocolError};
pub use session::Session;
pub use stats::{Frames, Stats};
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReuniteError, Stream};
