//! Packet encryption: kcp-go's ciphers, keys and nonces.
//!
//! This module owns the byte layout of a sealed packet. It does no I/O, reads no clock, and keeps no
//! state between packets: one cipher serves all sockets of an endpoint at once.
//!
//! # Choosing a cipher
//!
//! Choose an AEAD: [`Algorithm::Aes128Gcm`], [`Algorithm::Aes256Gcm`] or
//! [`Algorithm::ChaCha20Poly1305`]. Forged and altered packets are
//! dropped.
//!
//! The others are for peers that have no AEAD. They give confidentiality without integrity: their
//! checksum is a CRC-32, which detects transmission errors but no attacker, who can alter packets
//! and correct the CRC. [`Algorithm::Xor`] is obfuscation only: every packet has the same key stream,
//! which two packets of known contents reveal. [`Algorithm::None`] encrypts nothing,
//! [`Algorithm::Null`] adds no bytes at all.
//!
//! With every cipher one pre-shared key serves both directions and all clients of a server, without
//! a handshake and without forward secrecy: the holder of the key can decrypt all recorded traffic
//! and can act as either side. Change the key before 2^32 packets were sealed with it,
//! by all that have it together: [`EndpointStats::sealed_datagrams`](crate::EndpointStats::sealed_datagrams)
//! counts one endpoint, and so does the warning that is logged at 2^32.
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
//! bytes of the nonce in the clear, `none` everything.

mod aead;
mod algorithm;
mod cfb;
mod cipher;
mod frame;
mod key;
#[cfg(feature = "legacy-ciphers")]
mod legacy;
pub(crate) mod nonce;
mod packet_cipher;
mod salsa20;
#[cfg(test)]
mod tests;
mod xor;

pub use algorithm::Algorithm;
pub use cipher::Cipher;
pub use key::Key;
pub use packet_cipher::{OpenError, Overhead, PacketCipher};

#[cfg(any(test, feature = "_testkit"))]
pub(crate) use cipher::transform;
#[cfg(feature = "_testkit")]
pub(crate) use frame::Transform;
