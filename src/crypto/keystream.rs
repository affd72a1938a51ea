//! Ciphers that XOR a key stream into each packet: Salsa20, `xor`, and `none` without any.

use salsa20::Salsa20 as Stream;
use salsa20::cipher::{KeyIvInit, StreamCipher};
use sha1::Sha1;
use zeroize::Zeroizing;

use super::frame::Transform;

/// Bytes of the key stream of `xor`: kcp-go's largest packet (`mtuLimit`).
const XOR_LEN: usize = 1_500;
/// Salt and PBKDF2 iterations of that key stream, as in kcp-go.
const XOR_SALT: &[u8] = b"sH3CIVoF#rWLtJo6";
const XOR_ITERATIONS: u32 = 32;

/// The `none` cipher: nonce and checksum without encryption.
pub(super) struct Clear;

impl Transform for Clear {
    fn encrypt(&self, _: &mut [&mut [u8]]) {}

    fn decrypt(&self, _: &mut [u8]) {}
}

/// Salsa20: the first 8 bytes of the packet are its nonce and stay in the clear (kcp-go
/// `salsa20BlockCrypt`).
pub(super) struct Salsa20 {
    key: Zeroizing<[u8; 32]>,
}

impl Salsa20 {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { key: Zeroizing::new(key) }
    }

    fn apply(&self, packet: &mut [u8]) {
        // Packets shorter than the nonce stay unchanged.
        if let Some((nonce, rest)) = packet.split_first_chunk_mut::<8>() {
            Stream::new((&*self.key).into(), (&*nonce).into()).apply_keystream(rest);
        }
    }
}

impl Transform for Salsa20 {
    fn encrypt(&self, packets: &mut [&mut [u8]]) {
        packets.iter_mut().for_each(|packet| self.apply(packet));
    }

    fn decrypt(&self, packet: &mut [u8]) {
        self.apply(packet);
    }
}

/// The `xor` cipher (kcp-go `simpleXORBlockCrypt`): one key stream, XORed into every packet.
pub(super) struct Xor {
    key_stream: Zeroizing<Vec<u8>>,
}

impl Xor {
    pub(super) fn new(key: &[u8]) -> Self {
        let mut key_stream = Zeroizing::new(vec![0; XOR_LEN]);
        pbkdf2::pbkdf2_hmac::<Sha1>(key, XOR_SALT, XOR_ITERATIONS, &mut key_stream);
        Self { key_stream }
    }

    fn apply(&self, packet: &mut [u8]) {
        // Deviates: kcp-go has no packets above 1,500 bytes; here the key stream repeats after
        // that.
        for part in packet.chunks_mut(XOR_LEN) {
            part.iter_mut().zip(self.key_stream.iter()).for_each(|(byte, key)| *byte ^= key);
        }
    }
}

impl Transform for Xor {
    fn encrypt(&self, packets: &mut [&mut [u8]]) {
        packets.iter_mut().for_each(|packet| self.apply(packet));
    }

    fn decrypt(&self, packet: &mut [u8]) {
        self.apply(packet);
    }
}
