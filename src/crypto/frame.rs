//! The frame of every cipher without a tag of its own: nonce, checksum, body.
//!
//! The one place that knows where nonce and CRC stand. What turns the bytes into others is a
//! [`Transform`].

use std::fmt;

use super::{OpenError, Overhead, PacketCipher};

/// Bytes of nonce, and of the whole head.
pub(super) const NONCE: usize = 16;
pub(super) const HEAD: usize = NONCE + 4;

/// A length-preserving encryption of whole packets, head included.
pub(crate) trait Transform: Send + Sync {
    /// Encrypts each packet in place, whatever its length.
    fn encrypt(&self, packets: &mut [&mut [u8]]);

    /// Decrypts one packet in place, whatever its length.
    fn decrypt(&self, packet: &mut [u8]);
}

/// Leaves packets as they are: the "none" cipher, which still has nonce and checksum.
pub(super) struct Clear;

impl Transform for Clear {
    fn encrypt(&self, _: &mut [&mut [u8]]) {}

    fn decrypt(&self, _: &mut [u8]) {}
}

/// A transform behind nonce and checksum.
pub(super) struct Framed {
    name: &'static str,
    transform: Box<dyn Transform>,
}

impl Framed {
    pub(super) fn new(name: &'static str, transform: Box<dyn Transform>) -> Self {
        Self { name, transform }
    }
}

impl PacketCipher for Framed {
    fn overhead(&self) -> Overhead {
        Overhead { nonce: NONCE, header_len: HEAD, trailer_len: 0 }
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        for packet in packets.iter_mut() {
            let Some((head, body)) = packet.split_first_chunk_mut::<HEAD>() else { continue };
            // Over the body alone: neither the nonce nor the checksum itself is covered.
            if let Some(sum) = head.last_chunk_mut() {
                *sum = crc32fast::hash(body).to_le_bytes();
            }
        }
        self.transform.encrypt(packets);
    }

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        if datagram.len() < HEAD {
            return Err(OpenError);
        }
        self.transform.decrypt(datagram);
        let (head, body) = datagram.split_first_chunk::<HEAD>().ok_or(OpenError)?;
        let sum = crc32fast::hash(body).to_le_bytes();
        if head.last_chunk() == Some(&sum) { Ok(()) } else { Err(OpenError) }
    }
}

impl fmt::Debug for Framed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Framed({})", self.name)
    }
}
