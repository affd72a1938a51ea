//! Key material: raw or derived from a passphrase, wiped when it is dropped.

use std::fmt;

use sha1::Sha1;
use zeroize::Zeroizing;

/// PBKDF2 iterations, as in kcptun.
const ITERATIONS: u32 = 4_096;
/// Bytes of a derived key, as in kcptun: the longest key that a cipher uses.
const DERIVED_LEN: usize = 32;

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
        let mut bytes = Zeroizing::new(vec![0; DERIVED_LEN]);
        pbkdf2::pbkdf2_hmac::<Sha1>(passphrase.as_ref(), salt.as_ref(), ITERATIONS, &mut bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_key_equals_kcptuns() {
        let key = Key::derive("it's a secrect", Key::KCPTUN_SALT);
        let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "25d7d7bd51050742d8d791f2b653c6c8b2366b7e25a124cf7a2e12eaf4ffa444");
    }

    #[test]
    fn debug_hides_the_key() {
        assert_eq!(format!("{:?}", Key::new([7; 32])), "Key(..)");
        assert_eq!(format!("{:#?}", Some(Key::new("secret"))), "Some(\n    Key(..),\n)");
    }
}
