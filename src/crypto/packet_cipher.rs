//! The interface of packet ciphers, also for those of the application.

use std::fmt::Debug;

use thiserror::Error;

/// Bytes that a cipher adds to each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Bytes of the nonce, the first of the packet. They are part of `header_len`.
    pub nonce: usize,
    /// Bytes in front of the body, nonce included.
    pub header_len: usize,
    /// Bytes behind the body.
    pub trailer_len: usize,
}

impl Overhead {
    /// No bytes.
    pub(crate) const ZERO: Self = Self { nonce: 0, header_len: 0, trailer_len: 0 };
}

/// A packet cipher: encrypts (seals) and decrypts (opens) whole datagrams in place.
///
/// One object serves all sockets of an endpoint, from several threads at once, so it keeps no state
/// between packets. One that panics ends the endpoint. Implement it for a cipher that this crate does not have, and wrap it with
/// [`Cipher::custom`](super::Cipher::custom).
pub trait PacketCipher: Debug + Send + Sync + 'static {
    /// Returns the bytes that sealing adds, the same in every packet.
    ///
    /// `nonce` is 0 or 8 to `header_len`; `header_len` and `trailer_len` are at most 256 together.
    fn overhead(&self) -> Overhead;

    /// Seals each packet in place.
    ///
    /// A packet is `header | body | trailer`. Its first `nonce` bytes hold a nonce that is unique
    /// under this key. The rest of the header and the trailer are overwritten. The result for a
    /// slice shorter than header and trailer is unspecified.
    fn seal(&self, packets: &mut [&mut [u8]]);

    /// Opens a datagram in place.
    ///
    /// Afterwards the body stands between header and trailer, and the first `nonce` bytes hold the
    /// nonce as it was before sealing. Allocates nothing.
    ///
    /// # Errors
    ///
    /// When the datagram is too short, or its checksum or tag is wrong. Its contents are then
    /// unspecified.
    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError>;
}

/// A datagram cannot be opened: too short, damaged, forged, or sealed with another key.
///
/// The error does not distinguish these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the datagram cannot be opened")]
pub struct OpenError;
