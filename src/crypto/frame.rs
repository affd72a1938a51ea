//! Packet layout of the ciphers without integrity: nonce, CRC-32 of the body, body, all encrypted
//! (kcp-go `cryptHeaderSize`).

use std::fmt;

use super::packet_cipher::{OpenError, Overhead, PacketCipher};

/// Bytes of the nonce (kcp-go `nonceSize`), and of the header including the CRC.
const NONCE_LEN: usize = 16;
const HEADER_LEN: usize = NONCE_LEN + 4;

/// A length-preserving encryption of whole packets, header included.
pub(crate) trait Transform: Send + Sync {
    /// Encrypts each packet in place, whatever its length.
    fn encrypt(&self, packets: &mut [&mut [u8]]);

    /// Decrypts one packet in place, whatever its length.
    fn decrypt(&self, packet: &mut [u8]);
}

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
        Overhead { nonce: NONCE_LEN, header_len: HEADER_LEN, trailer_len: 0 }
    }

    fn seal(&self, packets: &mut [&mut [u8]]) {
        for packet in packets.iter_mut() {
            let Some((head, body)) = packet.split_first_chunk_mut::<HEADER_LEN>() else { continue };
            // The checksum covers the body, not the nonce.
            if let Some(sum) = head.last_chunk_mut() {
                *sum = crc32fast::hash(body).to_le_bytes();
            }
        }
        self.transform.encrypt(packets);
    }

    fn open(&self, datagram: &mut [u8]) -> Result<(), OpenError> {
        if datagram.len() < HEADER_LEN {
            return Err(OpenError);
        }
        self.transform.decrypt(datagram);
        let (head, body) = datagram.split_first_chunk::<HEADER_LEN>().ok_or(OpenError)?;
        let sum = crc32fast::hash(body).to_le_bytes();
        if head.last_chunk() == Some(&sum) { Ok(()) } else { Err(OpenError) }
    }
}

impl fmt::Debug for Framed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Framed({})", self.name)
    }
}
