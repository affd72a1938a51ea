//! Forward error correction: parity packets sent beside the data recover lost packets without a
//! retransmission. Format and Reed-Solomon code are kcp-go's.
//!
//! Packets form groups. [`FecEncoder`] numbers the data packets and folds each into the parity of
//! its group when it is sent. [`FecDecoder`] keeps the last few groups. Once any packets of a
//! group, equal in number to its data packets, have arrived, it recovers the missing data packets.
//! Encoder and decoder belong to a peer's address, since a parity packet covers packets of all its
//! connections.
//!
//! Encoder and decoder do no I/O, read no clock and draw no random numbers.
//!
//! # Example
//!
//! ```
//! use std::time::Instant;
//!
//! use kcpx::FecConfig;
//! use kcpx::fec::{FecDecoder, FecEncoder, HEADER_LEN};
//!
//! let (now, layout) = (Instant::now(), FecConfig::new(2, 1)?);
//! let mut encoder = FecEncoder::new(layout);
//! let mut one = [&[0; HEADER_LEN][..], b"one"].concat();
//! let mut two = [&[0; HEADER_LEN][..], b"two"].concat();
//! assert_eq!(encoder.seal(now, &mut one), 0);
//! assert_eq!(encoder.seal(now, &mut two), 1);
//! let mut parity = Vec::new();
//! encoder.emit_parity(0, &mut parity);
//!
//! let mut decoder = FecDecoder::new(Some(layout));
//! let mut recovered = Vec::new();
//! for packet in [two, parity] {
//!     decoder.input(now, &packet, |datagram| {
//!         recovered.push(datagram.to_vec());
//!         true
//!     });
//! }
//! assert_eq!(recovered, [b"one"]);
//! # Ok::<(), kcpx::ConfigError>(())
//! ```

mod autotune;
#[cfg(feature = "_testkit")]
#[doc(hidden)]
pub mod bench;
mod config;
mod decoder;
mod encoder;
pub(crate) mod gf256;
mod packet;
mod shard_buffers;
#[cfg(test)]
mod tests;

pub use config::FecConfig;
pub use decoder::{FecDecoder, FecStats};
pub use encoder::FecEncoder;
pub use packet::{DATA, FecFlag, HEADER_LEN, OUT_OF_BAND, PARITY, fec_flag};
pub(crate) use packet::{datagram_of, oob};
