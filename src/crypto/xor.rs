//! The `xor` cipher (kcp-go `simpleXORBlockCrypt`): one key stream, XORed into every packet.

use sha1::Sha1;
use zeroize::Zeroizing;

use super::frame::Transform;

/// Bytes of the key stream: kcp-go's largest packet (`mtuLimit`).
const KEY_STREAM_LEN: usize = 1_500;
/// Salt and PBKDF2 iterations of the key stream, as in kcp-go.
const SALT: &[u8] = b"sH3CIVoF#rWLtJo6";
const ITERATIONS: u32 = 32;

pub(super) struct Xor {
    key_stream: Zeroizing<Vec<u8>>,
}

impl Xor {
    pub(super) fn new(key: &[u8]) -> Self {
        let mut key_stream = Zeroizing::new(vec![0; KEY_STREAM_LEN]);
        pbkdf2::pbkdf2_hmac::<Sha1>(key, SALT, ITERATIONS, &mut key_stream);
        Self { key_stream }
    }

    fn apply(&self, packet: &mut [u8]) {
        // Deviates: kcp-go has no packets above 1,500 bytes; here the key stream repeats after
        // that.
        for part in packet.chunks_mut(KEY_STREAM_LEN) {
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
