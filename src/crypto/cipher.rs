//! `Cipher`: an algorithm with its key, as configured.

use std::fmt;
use std::sync::Arc;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};

use super::algorithm::Algorithm;
use super::frame::{Clear, Framed, Transform};
use super::key::Key;
#[cfg(feature = "legacy-ciphers")]
use super::legacy;
use super::packet_cipher::{OpenError, Overhead, PacketCipher};
use super::salsa20::Salsa20;
use super::xor::Xor;
use super::{aead, cfb};
use crate::error::ConfigError;

/// AES packets encrypted interleaved: the number that fills the processor's pipeline.
const AES_LANES: usize = 16;
/// Most bytes that a cipher may add to a packet.
const MAX_OVERHEAD: usize = 256;
/// Shortest nonce, in bytes: a counter that never wraps.
const MIN_NONCE: usize = 8;

/// The encryption of an endpoint: an algorithm with its key, or a [`PacketCipher`] of your own.
///
/// Cheap to clone; clones share one key schedule. Two ciphers are equal if one is a clone of the
/// other, or both are null. `Debug` shows the name alone. The default is [`Cipher::null`].
///
/// ```
/// use kcpx::{Algorithm, Cipher, Config};
///
/// let key = [7; 32]; // 32 random bytes that both sides share.
/// let cipher = Cipher::new(Algorithm::Aes256Gcm, &key)?;
/// let config = Config::new().cipher(cipher);
/// assert_eq!(config.cipher.name(), "aes-256-gcm");
/// assert!(Cipher::new(Algorithm::Aes256Gcm, b"too short").is_err());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Cipher {
    name: &'static str,
    packet_cipher: Option<Arc<dyn PacketCipher>>,
}

impl Cipher {
    /// No encryption, and no checksum beyond UDP's.
    #[must_use]
    pub fn null() -> Self {
        Self { name: Algorithm::Null.name(), packet_cipher: None }
    }

    /// An algorithm with a key of exactly its length.
    ///
    /// [`Algorithm::Null`] and [`Algorithm::None`] ignore the key.
    ///
    /// # Errors
    ///
    /// If the algorithm takes no key of this length.
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Result<Self, ConfigError> {
        algorithm.check_key(key.len())?;
        let name = algorithm.name();
        let packet_cipher = match algorithm {
            Algorithm::Null => return Ok(Self::null()),
            Algorithm::Aes128Gcm | Algorithm::Aes192Gcm | Algorithm::Aes256Gcm => {
                aead::aes_gcm(name, key)
            }
            Algorithm::ChaCha20Poly1305 => aead::chacha20_poly1305(name, key),
            _ => transform(algorithm, key)
                .map(|transform| Arc::new(Framed::new(name, transform)) as Arc<dyn PacketCipher>),
        };
        // A key that the algorithm rejects despite its length must not yield the null cipher.
        let refused = || ConfigError::KeyLength {
            cipher: name,
            len: key.len(),
            allowed: algorithm.key_len().to_string(),
        };
        Ok(Self { name, packet_cipher: Some(packet_cipher.ok_or_else(refused)?) })
    }

    /// An algorithm by name, with the leading [`Algorithm::key_len`] bytes of `key`, as in kcptun.
    ///
    /// # Errors
    ///
    /// If there is no such name (kcptun would use `aes`), this build lacks the algorithm, or the
    /// key is too short.
    pub fn from_name(name: &str, key: &Key) -> Result<Self, ConfigError> {
        let algorithm = Algorithm::from_name(name)?;
        let (len, wanted) = (key.as_bytes().len(), algorithm.key_len());
        let key = key.as_bytes().get(..wanted).ok_or_else(|| ConfigError::KeyLength {
            cipher: algorithm.name(),
            len,
            allowed: format!("{wanted} or more"),
        })?;
        Self::new(algorithm, key)
    }

    /// A cipher of your own.
    ///
    /// [`Config::validate`](crate::Config::validate) checks its [`Overhead`].
    #[must_use]
    pub fn custom(cipher: impl PacketCipher) -> Self {
        Self { name: "custom", packet_cipher: Some(Arc::new(cipher)) }
    }

    /// Returns the name of the algorithm, or `custom`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Returns the bytes that the cipher adds to each packet; zeros for null.
    #[must_use]
    pub fn overhead(&self) -> Overhead {
        self.packet_cipher.as_ref().map_or(Overhead::ZERO, |cipher| cipher.overhead())
    }

    /// Whether the cipher authenticates packets (AEAD).
    pub(crate) fn is_aead(&self) -> bool {
        Algorithm::ALL.iter().any(|algorithm| algorithm.is_aead() && algorithm.name() == self.name)
    }

    /// Whether the cipher has a key.
    pub(crate) fn has_key(&self) -> bool {
        ![Algorithm::Null.name(), Algorithm::None.name()].contains(&self.name)
    }

    /// Returns the packet cipher; `None` for null.
    pub(crate) fn packet_cipher(&self) -> Option<&Arc<dyn PacketCipher>> {
        self.packet_cipher.as_ref()
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Overhead { nonce, header_len: head, trailer_len: tail } = self.overhead();
        let max = MAX_OVERHEAD as u64;
        if nonce > 0 {
            ConfigError::check("cipher nonce (bytes)", nonce, MIN_NONCE as u64, max)?;
        }
        ConfigError::check("cipher head (bytes)", head, nonce as u64, max)?;
        ConfigError::check("cipher head and tail (bytes)", head.saturating_add(tail), 0, max)
    }
}

/// Delegates to the packet cipher; null leaves packets unchanged.
impl PacketCipher for Cipher {
    fn overhead(&self) -> Overhead {
        Self::overhead(self)
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        if let Some(cipher) = self.packet_cipher() {
            cipher.seal(packets);
        }
    }

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        self.packet_cipher().map_or(Ok(()), |cipher| cipher.open(datagram))
    }
}

impl Default for Cipher {
    fn default() -> Self {
        Self::null()
    }
}

impl PartialEq for Cipher {
    fn eq(&self, other: &Self) -> bool {
        match (&self.packet_cipher, &other.packet_cipher) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Cipher {}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher({})", self.name)
    }
}

/// Returns the length-preserving encryption of an algorithm without integrity; `None` for an AEAD
/// or a key of the wrong length.
pub(crate) fn transform(algorithm: Algorithm, key: &[u8]) -> Option<Box<dyn Transform>> {
    match algorithm {
        Algorithm::None => Some(Box::new(Clear)),
        Algorithm::Aes128 => cfb::new::<Aes128Enc, AES_LANES>(key),
        Algorithm::Aes192 => cfb::new::<Aes192Enc, AES_LANES>(key),
        Algorithm::Aes256 => cfb::new::<Aes256Enc, AES_LANES>(key),
        Algorithm::Salsa20 => Some(Box::new(Salsa20::new(key.try_into().ok()?))),
        Algorithm::Xor => Some(Box::new(Xor::new(key))),
        #[cfg(feature = "legacy-ciphers")]
        legacy => legacy::transform(legacy, key),
        #[cfg(not(feature = "legacy-ciphers"))]
        _ => None,
    }
}
