//! The "xor" cipher: one table, derived from the key, over every packet.

use sha1::Sha1;
use zeroize::Zeroizing;

use super::frame::Transform;

/// Bytes of the table of [`Xor`]: kcp-go's largest packet.
const TABLE: usize = 1_500;
/// Salt and iterations of that table, as in kcp-go.
const XOR_SALT: &[u8] = b"sH3CIVoF#rWLtJo6";
const XOR_ITERATIONS: u32 = 32;

/// The same bytes in every packet, derived from the key.
pub(super) struct Xor {
    table: Zeroizing<Vec<u8>>,
}

impl Xor {
    pub(super) fn new(key: &[u8]) -> Self {
        let mut table = Zeroizing::new(vec![0; TABLE]);
        pbkdf2::pbkdf2_hmac::<Sha1>(key, XOR_SALT, XOR_ITERATIONS, &mut table);
        Self { table }
    }

    fn apply(&self, packet: &mut [u8]) {
        // kcp-go has no longer packets, so that the table begins again is between us.
        for run in packet.chunks_mut(TABLE) {
            run.iter_mut().zip(self.table.iter()).for_each(|(byte, key)| *byte ^= key);
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
