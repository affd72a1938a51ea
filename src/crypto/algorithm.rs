//! Encryption algorithms by kcptun's names, and their key lengths.

use std::fmt;
use std::str::FromStr;

use crate::error::ConfigError;

/// Packet encryption algorithm of kcp-go and kcptun.
///
/// Names are kcptun's, except that its `aes` is `aes-256` here; `aes` is accepted too. See [the
/// module](crate::crypto) for the choice.
///
/// ```
/// use kcpx::Algorithm;
///
/// let algorithm: Algorithm = "aes-128-gcm".parse()?;
/// assert_eq!(algorithm, Algorithm::Aes128Gcm);
/// assert_eq!(algorithm.key_len(), 16);
/// assert!("aes-128-gmc".parse::<Algorithm>().is_err());
/// # Ok::<(), kcpx::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// `null`: packets as they are, without a checksum. Needs no key.
    Null,
    /// `none`: nonce and checksum in the clear; not the same wire as `null`. Needs no key.
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
    /// `salsa20`: a key of 32 bytes. Privacy without integrity; half of the nonce is in the clear.
    Salsa20,
    /// `xor`: a key of any length but zero. Obfuscation only: one key stream for every packet.
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

    /// Returns the algorithm of this name; `aes` is [`Algorithm::Aes256`].
    ///
    /// Deviates: kcptun uses `aes` for an unknown name, this function returns an error.
    ///
    /// # Errors
    ///
    /// If there is no such name, or this build lacks the feature that the algorithm needs.
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        let wanted = if name == "aes" { Self::Aes256.name() } else { name };
        let mut all = Self::ALL.iter().copied();
        all.find(|algorithm| algorithm.name() == wanted).ok_or_else(|| unknown(name))
    }

    /// Returns the name that [`Algorithm::from_name`] accepts.
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

    /// Returns the bytes of a derived key that the algorithm uses, as in kcptun: 0, 16, 24 or 32.
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

    /// Whether the algorithm authenticates packets (AEAD). The others accept packets that were
    /// altered on the path.
    #[must_use]
    pub fn is_aead(self) -> bool {
        use Algorithm::{Aes128Gcm, Aes192Gcm, Aes256Gcm, ChaCha20Poly1305};
        matches!(self, Aes128Gcm | Aes192Gcm | Aes256Gcm | ChaCha20Poly1305)
    }

    /// Checks the length of a key in bytes.
    pub(super) fn check_key(self, len: usize) -> Result<(), ConfigError> {
        let (fits, allowed) = match self {
            Self::Null | Self::None => (true, String::new()),
            Self::Xor => (len > 0, String::from("1 or more")),
            #[cfg(feature = "legacy-ciphers")]
            Self::Blowfish => ((1..=56).contains(&len), String::from("1 to 56")),
            #[cfg(feature = "legacy-ciphers")]
            Self::Twofish => (matches!(len, 16 | 24 | 32), String::from("16, 24 or 32")),
            exact => (len == exact.key_len(), exact.key_len().to_string()),
        };
        let cipher = self.name();
        if fits { Ok(()) } else { Err(ConfigError::KeyLength { cipher, len, allowed }) }
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

/// The error for an unknown name, or for a name that needs a feature.
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
