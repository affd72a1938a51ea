//! What stands between the protocol and the wire: packet ciphers, keys and nonces.
//!
//! Owns the byte layout of a sealed packet and every cipher that kcp-go has. Knows nothing of
//! sockets, conversations or time, and keeps no state between packets: one cipher serves all
//! sockets of an endpoint at once.
//!
//! # Which one
//!
//! Take an AEAD: [`Algorithm::Aes128Gcm`], [`Algorithm::Aes256Gcm`] or
//! [`Algorithm::ChaCha20Poly1305`]. A forged or altered packet is refused, and nothing of it is
//! believed.
//!
//! The others are there for peers that speak nothing else. They give privacy without integrity:
//! the checksum that they carry is a CRC, which finds accidents and stops nobody. Whoever can
//! alter a packet can alter what it says. [`Algorithm::Xor`] is an obfuscation only: its key
//! stream is the same in every packet, so two packets of known shape give it away.
//! [`Algorithm::None`] hides nothing, [`Algorithm::Null`] adds nothing at all.
//!
//! Whatever the cipher, there is one key for both directions and for all clients of a server, and
//! no handshake that would replace it. Who has the key can read everything that was ever recorded
//! under it, and can speak as either side. Change the key before 2^32 packets were sealed with it.
//!
//! # On the wire
//!
//! | cipher | a packet | bytes added |
//! |---|---|---|
//! | null | body | 0 |
//! | AEAD | nonce (12), encrypted body, tag (16) | 28 |
//! | every other | nonce (16), CRC-32 of the body (4), body, all of it encrypted | 20 |
//!
//! Nothing on the wire says which cipher is used; both sides are told. Salsa20 leaves the first
//! eight bytes of the nonce in clear, `none` everything.

mod aead;
mod cfb;
mod cipher;
mod frame;
mod key;
#[cfg(feature = "legacy-ciphers")]
mod legacy;
pub(crate) mod nonce;
mod salsa20;
#[cfg(test)]
mod tests;
mod xor;

use std::fmt::Debug;

use thiserror::Error;

pub use cipher::{Algorithm, Cipher};
pub use key::Key;

#[cfg(any(test, feature = "_testkit"))]
pub(crate) use cipher::transform;
#[cfg(feature = "_testkit")]
pub(crate) use frame::Transform;

/// Bytes that a cipher adds to each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Bytes of nonce. They are the first ones of the packet and part of `head`.
    pub nonce: usize,
    /// Bytes in front of the body, nonce included.
    pub header_len: usize,
    /// Bytes behind the body.
    pub trailer_len: usize,
}

impl Overhead {
    /// Nothing is added.
    pub(crate) const ZERO: Self = Self { nonce: 0, header_len: 0, trailer_len: 0 };
}

/// A packet cipher.
///
/// One object seals and opens for all sockets of an endpoint, from several threads at once, so it
/// keeps no state between packets. Implement it for a cipher that this crate does not have, and
/// wrap it with [`Cipher::custom`].
pub trait PacketCipher: Debug + Send + Sync + 'static {
    /// Bytes that sealing adds, in every packet the same.
    ///
    /// `nonce` is 0 or at least 8, at most `head`; `head` and `tail` are 256 at most together.
    fn overhead(&self) -> Overhead;

    /// Seals each packet in place.
    ///
    /// A packet is `head | body | tail`. Its first `nonce` bytes hold a nonce that is unique under
    /// this key. The rest of the head, and the tail, are there to be overwritten. A slice shorter
    /// than head and tail is not a packet; what becomes of it is unspecified.
    fn seal(&self, packets: &mut [&mut [u8]]);

    /// Opens a datagram in place.
    ///
    /// Then the body is what lies between head and tail, and the first `nonce` bytes hold the
    /// nonce as it was before sealing. Allocates nothing.
    ///
    /// # Errors
    ///
    /// When the datagram is too short, or its checksum or tag is wrong. What it then holds is
    /// unspecified.
    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError>;
}

/// A datagram that cannot be opened: too short, damaged, forged, or sealed with another key.
///
/// Which of these it was is not told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the datagram cannot be opened")]
pub struct OpenError;
