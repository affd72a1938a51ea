//! Which cipher: its names, the keys it takes, and the object that an endpoint carries.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use cipher::{BlockCipherEncrypt, KeyInit};

use super::cfb::Cfb;
use super::frame::{Clear, Framed, Transform};
use super::key::Key;
#[cfg(feature = "legacy-ciphers")]
use super::legacy;
use super::salsa20::Salsa20;
use super::xor::Xor;
use super::{OpenError, Overhead, PacketCipher, aead};
use crate::error::ConfigError;

/// Packets that AES encrypts side by side: as many as the processor keeps in flight.
const AES_LANES: usize = 16;
/// Most bytes that a cipher may add to a packet.
const MAX_OVERHEAD: usize = 256;
/// Least nonce of a cipher that has one: what a counter that never repeats needs.
const MIN_NONCE: usize = 8;

/// A cipher that kcp-go knows, or that its users plug in.
///
/// Names are kcptun's, with `aes-256` for its `aes`, which is taken too. See
/// [the module](crate::crypto) for which one to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// `null`: nothing is added, not even a checksum. Needs no key.
    Null,
    /// `none`: nonce and checksum in clear; not the same wire as `null`. Needs no key.
    None,
    /// `aes-128`: CFB, a key of 16 bytes. Privacy without integrity.
    Aes128,
    /// `aes-192`: CFB, a key of 24 bytes. Privacy without integrity.
    Aes192,
    /// `aes-256`: CFB, a key of 32 bytes. Privacy without integrity. kcptun's default, `aes`.
    Aes256,
    /// `aes-128-gcm`: AEAD, a key of 16 bytes. Recommended.
    Aes128Gcm,
    /// `aes-192-gcm`: AEAD, a key of 24 bytes.
    Aes192Gcm,
    /// `aes-256-gcm`: AEAD, a key of 32 bytes. Recommended.
    Aes256Gcm,
    /// `chacha20-poly1305`: AEAD, a key of 32 bytes. Recommended where AES has no hardware.
    ChaCha20Poly1305,
    /// `salsa20`: a key of 32 bytes. Privacy without integrity; half of the nonce is in clear.
    Salsa20,
    /// `xor`: a key of any length but zero. Obfuscation only: the same bytes hide every packet.
    Xor,
    /// `3des`: CFB, a key of 24 bytes. Slow. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    TripleDes,
    /// `blowfish`: CFB, a key of 1 to 56 bytes. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    Blowfish,
    /// `cast5`: CFB, a key of 16 bytes. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    Cast5,
    /// `sm4`: CFB, a key of 16 bytes. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    Sm4,
    /// `tea`: CFB, a key of 16 bytes; 16 rounds, a quarter of the usual. Breakable.
    #[cfg(feature = "legacy-ciphers")]
    Tea,
    /// `twofish`: CFB, a key of 16, 24 or 32 bytes. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    Twofish,
    /// `xtea`: CFB, a key of 16 bytes. Privacy without integrity.
    #[cfg(feature = "legacy-ciphers")]
    Xtea,
}

impl Algorithm {
    /// Every algorithm of this build.
    pub const ALL: &[Self] = &[
        Self::Null,
        Self::None,
        Self::Aes128,
        Self::Aes192,
        Self::Aes256,
        Self::Aes128Gcm,
        Self::Aes192Gcm,
        Self::Aes256Gcm,
        Self::ChaCha20Poly1305,
        Self::Salsa20,
        Self::Xor,
        #[cfg(feature = "legacy-ciphers")]
        Self::TripleDes,
        #[cfg(feature = "legacy-ciphers")]
        Self::Blowfish,
        #[cfg(feature = "legacy-ciphers")]
        Self::Cast5,
        #[cfg(feature = "legacy-ciphers")]
        Self::Sm4,
        #[cfg(feature = "legacy-ciphers")]
        Self::Tea,
        #[cfg(feature = "legacy-ciphers")]
        Self::Twofish,
        #[cfg(feature = "legacy-ciphers")]
        Self::Xtea,
    ];

    /// The algorithm of this name, with `aes` for [`Algorithm::Aes256`].
    ///
    /// kcptun takes `aes` for every name that it does not know. Here such a name is refused: a
    /// typing error must not choose the cipher.
    ///
    /// # Errors
    ///
    /// When there is no such name, or this build has been made without the feature it needs.
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        let wanted = if name == "aes" { Self::Aes256.name() } else { name };
        let mut all = Self::ALL.iter().copied();
        all.find(|algorithm| algorithm.name() == wanted).ok_or_else(|| unknown(name))
    }

    /// Its name, as [`Algorithm::from_name`] takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::None => "none",
            Self::Aes128 => "aes-128",
            Self::Aes192 => "aes-192",
            Self::Aes256 => "aes-256",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
            Self::Salsa20 => "salsa20",
            Self::Xor => "xor",
            #[cfg(feature = "legacy-ciphers")]
            Self::TripleDes => "3des",
            #[cfg(feature = "legacy-ciphers")]
            Self::Blowfish => "blowfish",
            #[cfg(feature = "legacy-ciphers")]
            Self::Cast5 => "cast5",
            #[cfg(feature = "legacy-ciphers")]
            Self::Sm4 => "sm4",
            #[cfg(feature = "legacy-ciphers")]
            Self::Tea => "tea",
            #[cfg(feature = "legacy-ciphers")]
            Self::Twofish => "twofish",
            #[cfg(feature = "legacy-ciphers")]
            Self::Xtea => "xtea",
        }
    }

    /// Bytes of a derived key that it takes, as kcptun: 0, 16, 24 or 32.
    #[must_use]
    pub fn key_len(self) -> usize {
        match self {
            Self::Null | Self::None => 0,
            Self::Aes128 | Self::Aes128Gcm => 16,
            Self::Aes192 | Self::Aes192Gcm => 24,
            Self::Aes256 | Self::Aes256Gcm | Self::ChaCha20Poly1305 | Self::Salsa20 | Self::Xor => {
                32
            }
            #[cfg(feature = "legacy-ciphers")]
            Self::TripleDes => 24,
            #[cfg(feature = "legacy-ciphers")]
            Self::Cast5 | Self::Sm4 | Self::Tea | Self::Xtea => 16,
            #[cfg(feature = "legacy-ciphers")]
            Self::Blowfish | Self::Twofish => 32,
        }
    }

    /// Whether a key of `len` bytes is taken, and otherwise which lengths are.
    fn check_key(self, len: usize) -> Result<(), ConfigError> {
        let (taken, allowed) = match self {
            Self::Null | Self::None => (true, String::new()),
            Self::Xor => (len > 0, String::from("1 or more")),
            #[cfg(feature = "legacy-ciphers")]
            Self::Blowfish => ((1..=56).contains(&len), String::from("1 to 56")),
            #[cfg(feature = "legacy-ciphers")]
            Self::Twofish => (matches!(len, 16 | 24 | 32), String::from("16, 24 or 32")),
            exact => (len == exact.key_len(), exact.key_len().to_string()),
        };
        let cipher = self.name();
        if taken { Ok(()) } else { Err(ConfigError::KeyLength { cipher, len, allowed }) }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, ConfigError> {
        Self::from_name(name)
    }
}

/// Why there is no algorithm of this name.
fn unknown(name: &str) -> ConfigError {
    #[cfg(not(feature = "legacy-ciphers"))]
    for legacy in ["3des", "blowfish", "cast5", "sm4", "tea", "twofish", "xtea"] {
        if name == legacy {
            return ConfigError::CipherNotCompiled { name: legacy, feature: "legacy-ciphers" };
        }
    }
    let names: Vec<_> = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).collect();
    ConfigError::UnknownCipher { name: name.to_owned(), allowed: names.join(", ") }
}

/// What an endpoint encrypts with: an algorithm and its key, or a cipher of your own.
///
/// Cheap to clone; clones share one key schedule. Two are equal when they are clones of one
/// another, or both null. `Debug` shows the name alone. The default is [`Cipher::null`].
#[derive(Clone)]
pub struct Cipher {
    name: &'static str,
    packet_cipher: Option<Arc<dyn PacketCipher>>,
}

impl Cipher {
    /// No encryption, and no checksum beyond UDP's: packets travel as they are.
    #[must_use]
    pub fn null() -> Self {
        Self { name: Algorithm::Null.name(), packet_cipher: None }
    }

    /// An algorithm under a key of exactly the length that it takes.
    ///
    /// [`Algorithm::Null`] and [`Algorithm::None`] ignore the key.
    ///
    /// # Errors
    ///
    /// When the algorithm takes no key of this length.
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
        // A key that its algorithm refuses although the length was right must not end as no
        // encryption at all.
        let refused = || ConfigError::KeyLength {
            cipher: name,
            len: key.len(),
            allowed: algorithm.key_len().to_string(),
        };
        Ok(Self { name, packet_cipher: Some(packet_cipher.ok_or_else(refused)?) })
    }

    /// An algorithm by name, with the leading bytes of `key` that it takes: kcptun's rule.
    ///
    /// # Errors
    ///
    /// When there is no such name, which kcptun would take for `aes`; when this build lacks the
    /// algorithm; when the key is shorter than [`Algorithm::key_len`].
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
    /// Its [`Overhead`] is checked when the configuration is.
    #[must_use]
    pub fn custom(cipher: impl PacketCipher) -> Self {
        Self { name: "custom", packet_cipher: Some(Arc::new(cipher)) }
    }

    /// The name of the algorithm, or `custom`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Bytes that it adds to each packet; zeros for null.
    #[must_use]
    pub fn overhead(&self) -> Overhead {
        self.packet_cipher.as_ref().map_or(Overhead::ZERO, |cipher| cipher.overhead())
    }

    /// Whether it proves that whoever sealed a packet has the key, and that nobody altered it.
    pub(crate) fn is_aead(&self) -> bool {
        use Algorithm::{Aes128Gcm, Aes192Gcm, Aes256Gcm, ChaCha20Poly1305};
        [Aes128Gcm, Aes192Gcm, Aes256Gcm, ChaCha20Poly1305].iter().any(|a| a.name() == self.name)
    }

    /// Whether there is a key at all.
    pub(crate) fn has_key(&self) -> bool {
        ![Algorithm::Null.name(), Algorithm::None.name()].contains(&self.name)
    }

    /// What seals and opens; `None` for null.
    pub(crate) fn packet_cipher(&self) -> Option<&Arc<dyn PacketCipher>> {
        self.packet_cipher.as_ref()
    }

    /// Whether the bytes that a cipher of the user's adds are within bounds.
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

/// As the cipher inside; null adds nothing and takes everything.
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

/// The bare encryption of an algorithm that is framed with nonce and checksum; `None` for others,
/// and for a key of the wrong length.
pub(crate) fn transform(algorithm: Algorithm, key: &[u8]) -> Option<Box<dyn Transform>> {
    match algorithm {
        Algorithm::None => Some(Box::new(Clear)),
        Algorithm::Aes128 => cfb::<Aes128Enc, AES_LANES>(key),
        Algorithm::Aes192 => cfb::<Aes192Enc, AES_LANES>(key),
        Algorithm::Aes256 => cfb::<Aes256Enc, AES_LANES>(key),
        Algorithm::Salsa20 => Some(Box::new(Salsa20::new(key.try_into().ok()?))),
        Algorithm::Xor => Some(Box::new(Xor::new(key))),
        #[cfg(feature = "legacy-ciphers")]
        legacy => legacy::transform(legacy, key),
        #[cfg(not(feature = "legacy-ciphers"))]
        _ => None,
    }
}

/// CFB with a block cipher under this key.
pub(super) fn cfb<C, const LANES: usize>(key: &[u8]) -> Option<Box<dyn Transform>>
where
    C: BlockCipherEncrypt + KeyInit + Send + Sync + 'static,
{
    Some(Box::new(Cfb::<C, LANES>::new(C::new_from_slice(key).ok()?)))
}
