//! smux versions 1 and 2: many streams over one connection, wire-compatible with xtaci/smux.
//!
//! A [`Session`] runs over any `AsyncRead + AsyncWrite`, the carrier. It opens [`Stream`]s and
//! accepts the peer's; each implements `AsyncRead + AsyncWrite`.
//!
//! ```
//! use kcpx_smux::{Config, Session, Version};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (ours, theirs) = tokio::io::duplex(65_536);
//! let client = Session::client(ours, Config::new().version(Version::V2))?;
//! let server = Session::server(theirs, Config::new().version(Version::Any))?;
//!
//! let mut stream = client.open_stream().await?;
//! stream.write_all(b"ping").await?;
//! let mut accepted = server.accept_stream().await?;
//! let mut received = [0; 4];
//! accepted.read_exact(&mut received).await?;
//! assert_eq!(&received, b"ping");
//! # Ok(())
//! # }
//! ```
//!
//! # Versions
//!
//! Versions are not negotiated: configure both sides alike, or the server with [`Version::Any`].
//!
//! **Version 1 has flow control for the session only**: one unread stream stops all others once
//! [`Config::max_receive_buffer`] bytes are unread. Version 2 has a window for each stream.
//!
//! # Defaults and limits
//!
//! Version 1; a NOP every 10 s, and the session ends 30 s after the last frame; payloads of at most
//! 32,768 bytes; 4 MiB unread per session, 65,536 bytes per stream in version 2 (262,144 before its
//! first update); 64 KiB queued per stream; 65,536 streams of the peer, 1,024 of them not yet
//! accepted. See [`Config`] for all settings and their ranges.
//!
//! # Ends
//!
//! `shutdown` closes one direction of a stream with FIN. Dropping a stream does so in the
//! background and discards received bytes. [`Stream::abort`] resets it. The protocol has no reset:
//! peers of this crate use a NOP frame with the stream's id, which xtaci/smux ignores. The end of
//! the carrier ends the session: streams return the received bytes, and then an [`Error`] inside an
//! `io::Error`.
//!
//! # Tasks
//!
//! One task per session, the [`Driver`], reads and writes the carrier. `client` and `server` spawn
//! it; `client_with_driver` and `server_with_driver` return it.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
// Not in this crate's own tests, which truncate numbers.
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
#[cfg(all(test, loom))]
mod loom_tests;
mod session;
mod shared;
mod stats;
mod stream;
mod sync;

pub use config::{Config, Version};
pub use driver::Driver;
pub use error::{ConfigError, Error, ProtocolError};
pub use session::Session;
pub use stats::{Frames, Stats};
pub use stream::{OwnedReadHalf, OwnedWriteHalf, ReuniteError, Stream};

/// Compiles the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
