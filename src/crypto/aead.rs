//! Ciphers with a tag of their own: nonce in clear, encrypted body, tag. No associated data.
//!
//! Knows the layout; the arithmetic is a backend's.

#[cfg(feature = "aws-lc-rs")]
mod aws_lc;
// Tests compare the two.
#[cfg(any(test, not(feature = "aws-lc-rs")))]
mod rust_crypto;

use std::fmt;

use super::{OpenError, Overhead, PacketCipher};

#[cfg(feature = "aws-lc-rs")]
pub(super) use aws_lc::{aes_gcm, chacha20_poly1305};
#[cfg(not(feature = "aws-lc-rs"))]
pub(super) use rust_crypto::{aes_gcm, chacha20_poly1305};

const NONCE: usize = 12;
const TAG: usize = 16;

type Nonce = [u8; NONCE];
type Tag = [u8; TAG];

/// A keyed AEAD with 12 bytes of nonce and 16 of tag.
trait Backend: Send + Sync + 'static {
    /// Encrypts `body` in place and gives its tag. `None` only for bodies beyond the cipher's
    /// limits, which are far beyond any datagram.
    fn encrypt(&self, nonce: &Nonce, body: &mut [u8]) -> Option<Tag>;

    /// Decrypts `body` in place.
    fn decrypt(&self, nonce: &Nonce, body: &mut [u8], tag: &Tag) -> Result<(), OpenError>;
}

/// A backend behind the packet layout.
struct Aead<B> {
    name: &'static str,
    backend: B,
}

impl<B: Backend> PacketCipher for Aead<B> {
    fn overhead(&self) -> Overhead {
        Overhead { nonce: NONCE, header_len: NONCE, trailer_len: TAG }
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        for packet in packets.iter_mut() {
            let Some((nonce, rest)) = packet.split_first_chunk_mut() else { continue };
            let Some((body, tag)) = rest.split_last_chunk_mut() else { continue };
            match self.backend.encrypt(nonce, body) {
                Some(sealed) => *tag = sealed,
                // Better an unreadable packet than a readable one.
                None => body.fill(0),
            }
        }
    }

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        let (nonce, rest) = datagram.split_first_chunk_mut().ok_or(OpenError)?;
        let (body, tag) = rest.split_last_chunk_mut().ok_or(OpenError)?;
        self.backend.decrypt(nonce, body, tag)
    }
}

impl<B> fmt::Debug for Aead<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Aead({})", self.name)
    }
}

#[cfg(all(test, feature = "aws-lc-rs"))]
mod tests {
    use super::*;

    #[test]
    fn both_backends_write_the_same_packets() {
        let key: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let pairs = [
            (aes_gcm("", &key[..16]), rust_crypto::aes_gcm("", &key[..16])),
            (aes_gcm("", &key[..24]), rust_crypto::aes_gcm("", &key[..24])),
            (aes_gcm("", &key), rust_crypto::aes_gcm("", &key)),
            (chacha20_poly1305("", &key), rust_crypto::chacha20_poly1305("", &key)),
        ];
        for (one, other) in pairs {
            let (one, other) = (one.unwrap(), other.unwrap());
            for len in (28..300).chain([1_400, 1_500, 65_507]) {
                let plain: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
                let (mut a, mut b) = (plain.clone(), plain.clone());
                one.seal(&mut [&mut a]);
                other.seal(&mut [&mut b]);
                assert_eq!(a, b, "{len} bytes");
                one.open(&mut b).unwrap();
                other.open(&mut a).unwrap();
                assert_eq!(a[..len - TAG], plain[..len - TAG]);
                assert_eq!(b[..len - TAG], plain[..len - TAG]);
            }
        }
    }
}
