//! KCP for Tokio: a reliable, ordered, low-latency byte stream over UDP, wire-compatible with
//! kcp-go.
//!
//! [`KcpListener`] and [`KcpStream`] are used like Tokio's `TcpListener` and `TcpStream`:
//!
//! ```
//! use kcpx::{KcpListener, KcpStream};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = KcpListener::bind("127.0.0.1:0").await?;
//! let addr = listener.local_addr()?;
//! let server = tokio::spawn(async move {
//!     let (mut stream, _peer) = listener.accept().await?;
//!     let mut hello = [0; 5];
//!     stream.read_exact(&mut hello).await?;
//!     stream.write_all(&hello).await?;
//!     drop(stream); // Written data is still delivered ...
//!     listener.wait_idle().await; // ... as long as the process waits for it.
//!     std::io::Result::Ok(())
//! });
//!
//! let mut stream = KcpStream::connect(addr).await?;
//! stream.write_all(b"hello").await?;
//! let mut echo = [0; 5];
//! stream.read_exact(&mut echo).await?;
//! assert_eq!(&echo, b"hello");
//! stream.shutdown().await?; // Ok: the peer acknowledged every byte.
//! server.await??;
//! # Ok(())
//! # }
//! ```
//!
//! # The model
//!
//! One task per UDP socket drives all connections on it; streams exchange bytes with that task
//! through queues. A connection is identified by the peer's address and a 32-bit conversation id.
//! KCP has no handshake: `connect` sends a window probe that opens it and waits for the answer, or
//! opens it with the first data, see [`Config::early_data`]. KCP has no FIN either. Between
//! peers of this crate, CONTROL segments tell a reader the end of the stream (EOF); other
//! implementations never receive them, and a reader of kcp-go data must know its length. A vanished
//! peer is an error, never an EOF.
//!
//! * `flush` hands bytes to the protocol; it does not wait for the peer.
//! * `shutdown` is `Ok` once the peer acknowledged every byte; the peer's reader gets EOF.
//! * Dropping a stream delivers written data in the background, for up to [`Config::linger`] without
//!   progress. [`Endpoint::wait_idle`] waits for that; a process that exits earlier sends what the
//!   congestion window takes within 50 ms and loses the rest.
//!
//! The [`guide`] has the differences from TCP, the settings for your traffic and path, and the causes of
//! errors.
//!
//! An [`Endpoint`] connects and accepts any number of connections on one socket, which it binds or
//! adopts, or over another carrier of datagrams, see [`Transport`].
//!
//! # Defaults and time-outs
//!
//! These are the values of [`Config::new`]; [`Config::interactive`] and [`Config::bulk`] change a few.
//!
//! | setting | default | what it is |
//! |---|---|---|
//! | [`Config::timing`] | FAST2 | retransmission timing, kcptun's "fast2" |
//! | [`Config::congestion_control`] | Bbr | the sender follows the measured bandwidth of the path |
//! | [`Config::windows`] | 1,024 to 8,192 segments | most in flight, most received and unread; grows with the path |
//! | [`Config::mtu`] | 1,400 bytes | largest datagram, without the headers of IP and UDP |
//! | [`Config::send_buffer`] | 256 KiB | written and unsent; a write waits beyond it |
//! | [`Config::recv_buffer`] | 256 KiB | received and unread; the peer waits beyond it |
//! | [`Config::socket_buffers`] | 4 MiB each | buffers of the UDP socket, if the system grants them |
//! | [`Config::cipher`] | none | must be the same on both sides |
//! | [`Config::redundancy`] | off | sent against losses; a peer's FEC is used without a setting |
//! | [`Config::connect_timeout`] | 10 s | then `connect` fails with `TimedOut` |
//! | [`Config::keepalive`] | 15 s | idle time before a ping; a third of a shorter idle timeout |
//! | [`Config::keepalive_side`] | passive | the accepting side pings, the other answers |
//! | [`Config::idle_timeout`] | 60 s | the connection ends after this time without a datagram from the peer |
//! | [`Config::dead_peer_timeout`] | 60 s | the connection ends after this time with unanswered data or ping |
//! | [`Config::max_retransmit_interval`] | 10 s | longest wait between copies of a segment |
//! | [`Config::linger`] | 10 s | limit of `shutdown` and delivery after a drop, without progress |
//! | TIME-WAIT | 60 s | an ended connection is remembered; no setting |
//! | [`Limits::max_connections`] | 65,536 | connections of one endpoint |
//! | [`Limits::max_per_source`] | the free places | connections of one IPv4 address or IPv6 /64 prefix |
//! | [`Limits::memory`] | 1024 MiB | memory of all connections, a sixteenth for unvalidated peers |
//! | [`Limits::backlog`] | 1,024 | connections waiting for `accept` |
//! | [`Limits::max_unvalidated`] | 4,096 | connections of peers whose address may be forged |
//! | [`Limits::validation_timeout`] | 30 s | time to validate a peer's address |
//!
//! # Ciphers, FEC, datagrams
//!
//! [`Config::cipher`] and [`Config::redundancy`] select the rest of kcp-go's wire format; see [`crypto`]
//! for the choice of a cipher and [`fec`] for the cost of redundancy. Both sides need the same cipher
//! and key; each chooses its FEC independently. A stream also carries unreliable datagrams, see
//! [`KcpStream::datagrams`].
//!
//! # Limits
//!
//! Without a cipher, an off-path attacker who knows or guesses address and conversation id can forge
//! data. With a cipher that is not an AEAD, an on-path attacker can alter data.
//!
//! # Without a runtime
//!
//! [`proto`] is the sans-I/O protocol state machine; [`fec`] and [`crypto`] are the stages between it
//! and a socket. They use no sockets, no clock and no randomness.
//!
//! # Features
//!
//! * `stream`: [`Incoming`] is a `futures_core::Stream`.
//! * `axum`: [`KcpListener`] is an `axum::serve::Listener`.
//! * `hyper`: `KcpConnector` for the clients of hyper-util and tonic.
//! * `tonic`: [`KcpStream`] is `tonic::transport::server::Connected`. With `stream`, a tonic
//!   server takes [`KcpListener::incoming`].
//! * `tokio-util`: [`KcpListener`] is a `tokio_util::net::Listener`.
//! * `legacy-ciphers`: kcp-go's older ciphers.
//! * `netlink`: on Linux, connections that this side opened notice changes of the host's addresses and routes,
//!   so that an idle one migrates at once. Each process gets a thread, which sleeps between changes.
//! * `qlog`: `Config::qlog` writes a log of each connection, which qvis and `kcpx-trace graph` draw. See
//!   [the guide](crate::guide::troubleshooting#logs-of-connections).
//! * `aws-lc-rs` (default): AEADs from AWS-LC, which needs a C compiler. Without it they come from
//!   RustCrypto, in pure Rust: the same packets, at a third of the speed on x86-64.
//! * `tracing` (default): lifecycle events of connections.

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(missing_debug_implementations, missing_docs, unnameable_types, unreachable_pub)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]
// Not in this crate's own tests, which print seeds, read the clock and cut numbers short.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::disallowed_macros,
        clippy::disallowed_methods,
        clippy::unwrap_used
    )
)]
#![cfg_attr(loom, allow(dead_code, reason = "loom models use only the modules below `driver`"))]

pub mod crypto;
pub mod fec;
#[cfg(doc)]
pub mod guide;
pub mod proto;
pub mod stats;

mod config;
mod core;
mod error;
#[cfg(feature = "_testkit")]
#[doc(hidden)]
pub mod fuzz;
mod shared;
#[cfg(any(test, feature = "_testkit"))]
#[doc(hidden)]
pub mod testkit;
mod util;

// The loom models need only the modules above.
#[cfg(not(loom))]
mod driver;
#[cfg(not(loom))]
mod ecosystem;
#[cfg(not(loom))]
mod endpoint;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod stream;
#[cfg(not(loom))]
mod sys;
#[cfg(not(loom))]
mod trace;

pub use config::{
    AcceptFilter, AckPolicy, AutoRedundancy, Config, CongestionControl, KeepaliveInterval,
    KeepaliveSide, Limits, Migration, Mode, PacketFilter, PathMode, Redundancy, Timing,
    WritePolicy,
};
#[cfg(not(loom))]
pub use core::path::set::{PathId, PathState};
pub use crypto::{Algorithm, Cipher, Key};
#[cfg(all(feature = "tonic", not(loom)))]
pub use ecosystem::KcpConnectInfo;
#[cfg(all(feature = "hyper", not(loom)))]
pub use ecosystem::KcpConnector;
#[cfg(not(loom))]
pub use endpoint::Endpoint;
pub use error::{ConfigError, ConnectionError, TimeoutCause};
pub use fec::FecConfig;
#[cfg(not(loom))]
pub use listener::{Incoming, KcpListener, Shutdown};
pub use stats::{ConnectionStats, EndpointStats};
#[cfg(not(loom))]
pub use stream::KcpStream;
#[cfg(not(loom))]
pub use stream::datagram::Datagrams;
#[cfg(not(loom))]
pub use stream::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
#[cfg(not(loom))]
pub use stream::paths::PathStatus;
#[cfg(not(loom))]
pub use sys::transport::{RecvBatch, Transmit, Transport};

/// The example of docs/scaling.md, compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/scaling.md")]
mod scaling {}

/// The README's examples, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
