//! The interface of packet ciphers, built-in and custom.

use std::fmt::Debug;

use thiserror::Error;

/// Bytes that a cipher adds to each packet.
///
/// ```
/// use kcpx::{Algorithm, Cipher};
///
/// let overhead = Cipher::new(Algorithm::Aes128Gcm, &[7; 16])?.overhead();
/// assert_eq!(overhead.nonce, 12);
/// assert_eq!(overhead.header_len + overhead.trailer_len, 28);
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Bytes of the nonce, with which the packet begins; included in `header_len`.
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
/// between packets. A cipher that panics ends the endpoint. Implement the trait for a cipher that
/// this crate lacks, and wrap it with [`Cipher::custom`](super::Cipher::custom).
///
/// ```
/// use kcpx::crypto::{OpenError, Overhead, PacketCipher};
/// use kcpx::{Cipher, Config};
///
/// /// A checksum behind each packet, without encryption: it only shows the shape.
/// #[derive(Debug)]
/// struct Checksum;
///
/// fn sum(body: &[u8]) -> [u8; 4] {
///     body.iter().fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte)).to_be_bytes()
/// }
///
/// impl PacketCipher for Checksum {
///     fn overhead(&self) -> Overhead {
///         Overhead { nonce: 0, header_len: 0, trailer_len: 4 }
///     }
///
///     fn seal(&self, packets: &mut [&mut [u8]]) {
///         for packet in packets {
///             if let Some((body, trailer)) = packet.split_last_chunk_mut() {
///                 *trailer = sum(body);
///             }
///         }
///     }
///
///     fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
///         match datagram.split_last_chunk() {
///             Some((body, trailer)) if *trailer == sum(body) => Ok(()),
///             _ => Err(OpenError),
///         }
///     }
/// }
///
/// let config = Config::new().cipher(Cipher::custom(Checksum));
/// assert!(config.validate().is_ok());
/// ```
pub trait PacketCipher: Debug + Send + Sync + 'static {
    /// Returns the bytes that sealing adds, the same in every packet.
    ///
    /// `nonce` is 0 or from 8 to `header_len`; `header_len` and `trailer_len` together are at most
    /// 256.
    fn overhead(&self) -> Overhead;

    /// Seals each packet in place.
    ///
    /// A packet is `header | body | trailer`. Its first `nonce` bytes hold a nonce that is unique
    /// under this key; the rest of the header and the trailer are overwritten. The result for a
    /// slice shorter than header and trailer is unspecified.
    fn seal(&self, packets: &mut [&mut [u8]]);

    /// Opens a datagram in place.
    ///
    /// Leaves the body between header and trailer, and the original nonce in the first `nonce`
    /// bytes. Allocates nothing.
    ///
    /// # Errors
    ///
    /// If the datagram is too short, or its checksum or tag is wrong. Its contents are then
    /// unspecified.
    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError>;
}

/// A datagram cannot be opened: too short, damaged, forged, or sealed with another key.
///
/// The error does not distinguish the causes.
///
/// ```
/// use kcpx::crypto::{OpenError, PacketCipher};
/// use kcpx::{Algorithm, Cipher};
///
/// let cipher = Cipher::new(Algorithm::Aes128Gcm, &[7; 16])?;
/// let mut forged = [0; 64];
/// assert_eq!(cipher.open(&mut forged), Err(OpenError));
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the datagram cannot be opened")]
pub struct OpenError;
