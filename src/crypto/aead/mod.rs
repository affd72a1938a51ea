//! AEAD ciphers (AES-GCM, ChaCha20-Poly1305): two backends with the same wire format.
//!
//! A packet is the nonce in the clear, the encrypted body, and the tag, without associated data (kcp-go
//! `aeadCrypt`).

#[cfg(feature = "aws-lc-rs")]
mod aws_lc;
// Tests compare both backends.
#[cfg(any(test, not(feature = "aws-lc-rs")))]
mod rust_crypto;

use std::fmt;

use super::packet_cipher::{OpenError, Overhead, PacketCipher};

#[cfg(feature = "aws-lc-rs")]
pub(super) use aws_lc::{aes_gcm, chacha20_poly1305};
#[cfg(not(feature = "aws-lc-rs"))]
pub(super) use rust_crypto::{aes_gcm, chacha20_poly1305};

const NONCE_LEN: usize = 12;
const TAG_LEN: usize = 16;

type Nonce = [u8; NONCE_LEN];
type Tag = [u8; TAG_LEN];

/// A keyed AEAD (RFC 5116) with a nonce of 12 bytes and a tag of 16.
trait Backend: Send + Sync + 'static {
    /// Encrypts `body` in place and returns its tag. `None` only for bodies above the cipher's
    /// limit, far above any datagram.
    fn encrypt(&self, nonce: &Nonce, body: &mut [u8]) -> Option<Tag>;

    /// Decrypts `body` in place.
    fn decrypt(&self, nonce: &Nonce, body: &mut [u8], tag: &Tag) -> Result<(), OpenError>;
}

struct Aead<B> {
    name: &'static str,
    backend: B,
}

impl<B: Backend> PacketCipher for Aead<B> {
    fn overhead(&self) -> Overhead {
        Overhead { nonce: NONCE_LEN, header_len: NONCE_LEN, trailer_len: TAG_LEN }
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        for packet in packets.iter_mut() {
            let Some((nonce, rest)) = packet.split_first_chunk_mut() else { continue };
            let Some((body, tag)) = rest.split_last_chunk_mut() else { continue };
            match self.backend.encrypt(nonce, body) {
                Some(sealed) => *tag = sealed,
                // Plaintext must not leave: the peer drops this packet.
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
    fn aead_packets_of_both_backends_are_equal() {
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
                let mut changed = a.clone();
                changed[len / 2] ^= 1;
                assert!(one.open(&mut changed.clone()).is_err(), "{len} bytes");
                assert!(other.open(&mut changed).is_err(), "{len} bytes");
                one.open(&mut b).unwrap();
                other.open(&mut a).unwrap();
                assert_eq!(a[..len - TAG_LEN], plain[..len - TAG_LEN]);
                assert_eq!(b[..len - TAG_LEN], plain[..len - TAG_LEN]);
            }
        }
    }
}
