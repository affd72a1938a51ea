//! Salsa20: the first 8 bytes of the packet are its nonce and stay in the clear (kcp-go
//! `salsa20BlockCrypt`).

use salsa20::Salsa20 as Stream;
use salsa20::cipher::{KeyIvInit, StreamCipher};
use zeroize::Zeroizing;

use super::frame::Transform;

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
