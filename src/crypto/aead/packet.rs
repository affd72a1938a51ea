//! Packet layout of the AEADs: nonce in the clear, encrypted body, tag; no associated data (kcp-go
//! `aeadCrypt`).

use std::fmt;

use crate::crypto::packet_cipher::{OpenError, Overhead, PacketCipher};

const NONCE_LEN: usize = 12;
pub(super) const TAG_LEN: usize = 16;

pub(super) type Nonce = [u8; NONCE_LEN];
pub(super) type Tag = [u8; TAG_LEN];

/// A keyed AEAD (RFC 5116) with a nonce of 12 bytes and a tag of 16.
pub(super) trait Backend: Send + Sync + 'static {
    /// Encrypts `body` in place and returns its tag. `None` only for bodies above the cipher's
    /// limit, far above any datagram.
    fn encrypt(&self, nonce: &Nonce, body: &mut [u8]) -> Option<Tag>;

    /// Decrypts `body` in place.
    fn decrypt(&self, nonce: &Nonce, body: &mut [u8], tag: &Tag) -> Result<(), OpenError>;
}

pub(super) struct Aead<B> {
    pub(super) name: &'static str,
    pub(super) backend: B,
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
