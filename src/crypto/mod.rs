//! Packet encryption: kcp-go's ciphers, keys and nonces.
//!
//! Defines the byte layout of a sealed packet. Does no I/O, reads no clock, and keeps no state
//! between packets: one cipher serves all sockets of an endpoint concurrently.
//!
//! # Choosing a cipher
//!
//! Choose an AEAD: [`Algorithm::Aes128Gcm`], [`Algorithm::Aes256Gcm`] or
//! [`Algorithm::ChaCha20Poly1305`]. It drops forged and altered packets.
//!
//! Use the others only for peers without an AEAD. They give confidentiality without integrity:
//! their checksum is a CRC-32, which an attacker can correct after altering a packet.
//! [`Algorithm::Xor`] is obfuscation only: it reuses one key stream for every packet, which two
//! packets of known contents reveal. [`Algorithm::None`] encrypts nothing, [`Algorithm::Null`] adds
//! no bytes at all.
//!
//! One pre-shared key serves both directions and all clients of a server, without a handshake and
//! without forward secrecy: a holder of the key can decrypt all recorded traffic and act as either
//! side. Change the key on all endpoints together before they have sealed 2^32 packets with it.
//! [`EndpointStats::sealed_datagrams`](crate::EndpointStats::sealed_datagrams) counts the packets
//! of one endpoint, and the endpoint logs a warning at 2^32.
//!
//! # On the wire
//!
//! | cipher | a packet | bytes added |
//! |---|---|---|
//! | null | body | 0 |
//! | AEAD | nonce (12), encrypted body, tag (16) | 28 |
//! | every other | nonce (16), CRC-32 of the body (4), body, all of it encrypted | 20 |
//!
//! No field names the cipher; both sides must be configured alike. Salsa20 leaves the first eight
//! bytes of the nonce in the clear, `none` leaves the whole packet.

mod aead;
mod algorithm;
mod cfb;
mod cipher;
mod frame;
mod keystream;
#[cfg(feature = "legacy-ciphers")]
mod legacy;
pub(crate) mod nonce;
mod packet_cipher;
#[cfg(test)]
mod tests;
#[cfg(feature = "legacy-ciphers")]
mod twofish;

pub use algorithm::Algorithm;
pub use cipher::{Cipher, Key};
pub use packet_cipher::{OpenError, Overhead, PacketCipher};

#[cfg(any(test, feature = "_testkit"))]
pub(crate) use cipher::transform;
#[cfg(feature = "_testkit")]
pub(crate) use frame::Transform;
