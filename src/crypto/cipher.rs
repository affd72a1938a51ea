//! `Key`, and `Cipher`: an algorithm with its key, as configured.

use std::fmt;
use std::sync::Arc;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use sha1::Sha1;
use zeroize::Zeroizing;

use super::algorithm::Algorithm;
use super::frame::{Framed, Transform};
use super::keystream::{Clear, Salsa20, Xor};
#[cfg(feature = "legacy-ciphers")]
use super::legacy;
use super::packet_cipher::{OpenError, Overhead, PacketCipher};
use super::{aead, cfb};
use crate::error::ConfigError;

/// PBKDF2 iterations, as in kcptun.
const KEY_ITERATIONS: u32 = 4_096;
/// Bytes of a derived key, as in kcptun: the longest key that a cipher uses.
const DERIVED_KEY_LEN: usize = 32;
/// AES packets encrypted interleaved: the number that fills the processor's pipeline.
const AES_LANES: usize = 16;
/// Most bytes that a cipher may add to a packet.
const MAX_OVERHEAD: usize = 256;
/// Shortest nonce, in bytes: a counter that never wraps.
const MIN_NONCE: usize = 8;

/// Key material for [`Cipher::from_name`](crate::Cipher::from_name).
///
/// The bytes are wiped from memory when the key is dropped, and its `Debug` does not show them.
///
/// ```
/// use kcpx::{Cipher, Key};
///
/// # fn main() -> Result<(), kcpx::ConfigError> {
/// let key = Key::derive("a long passphrase", Key::KCPTUN_SALT);
/// let cipher = Cipher::from_name("aes-128-gcm", &key)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// kcptun's salt: `kcp-go`.
    pub const KCPTUN_SALT: &'static str = "kcp-go";

    /// Derives 32 bytes from a passphrase: PBKDF2-HMAC-SHA1, 4,096 iterations, as kcptun does.
    ///
    /// Takes a few milliseconds. 4,096 iterations barely slow down guessing, so use a long
    /// passphrase, or random bytes and [`Key::new`].
    #[must_use]
    pub fn derive(passphrase: impl AsRef<[u8]>, salt: impl AsRef<[u8]>) -> Self {
        let mut bytes = Zeroizing::new(vec![0; DERIVED_KEY_LEN]);
        pbkdf2::pbkdf2_hmac::<Sha1>(passphrase.as_ref(), salt.as_ref(), KEY_ITERATIONS, &mut bytes);
        Self(bytes)
    }

    /// A key of raw bytes.
    #[must_use]
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(Zeroizing::new(bytes.as_ref().to_vec()))
    }

    /// Returns the bytes of the key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

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
/// assert_eq!(cipher.name(), "aes-256-gcm");
/// let config = Config::new().cipher(cipher);
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
