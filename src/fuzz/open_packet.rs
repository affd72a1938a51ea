//! Body of the fuzz target `open_packet`; access to bare ciphers and nonces for tests and benches.

use std::fmt;

use crate::crypto::nonce::{NonceSecret, NonceSource};
use crate::crypto::{self, Algorithm, Cipher, PacketCipher, Transform};

/// A cipher without nonce and checksum.
pub struct Bare(Box<dyn Transform>);

impl Bare {
    /// `None` if this build has no such cipher, or the key does not fit.
    #[must_use]
    pub fn new(name: &str, key: &[u8]) -> Option<Self> {
        crypto::transform(Algorithm::from_name(name).ok()?, key).map(Self)
    }

    /// Encrypts whole packets.
    pub fn encrypt(&self, packets: &mut [&mut [u8]]) {
        self.0.encrypt(packets);
    }

    /// Decrypts a whole packet.
    pub fn decrypt(&self, packet: &mut [u8]) {
        self.0.decrypt(packet);
    }
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bare(..)")
    }
}

/// The nonces of one socket, and their detection.
#[derive(Debug)]
pub struct SocketNonces(NonceSecret, NonceSource);

impl SocketNonces {
    /// Builds the source from a secret.
    #[must_use]
    pub fn new(random: &[u8; 32]) -> Self {
        let secret = NonceSecret::new(random);
        let source = NonceSource::new(&secret, 0);
        Self(secret, source)
    }

    /// Writes `len` bytes of nonce at the start of each packet. Returns the number of nonces so
    /// far.
    pub fn fill(&mut self, len: usize, packets: &mut [&mut [u8]]) -> u64 {
        self.1.fill(len, packets);
        self.1.count()
    }

    /// Whether `nonce` is one of these.
    #[must_use]
    pub fn is_own(&self, nonce: &[u8]) -> bool {
        self.0.is_own(nonce)
    }
}

/// Opens arbitrary bytes with every cipher, and opens sealed packets to their body.
///
/// # Panics
///
/// If a sealed packet does not open to its body.
pub fn open_packet(data: &[u8]) {
    // Bytes 0..32 are the key; each cipher uses a prefix.
    let Some((key, rest)) = data.split_first_chunk::<32>() else { return };
    for algorithm in Algorithm::ALL {
        let cipher = Cipher::new(*algorithm, &key[..algorithm.key_len()]).expect("the right key");
        cipher.check().expect("within bounds");
        let Some(packet_cipher) = cipher.packet_cipher() else { continue };
        let mut datagram = rest.to_vec();
        if packet_cipher.open(&mut datagram).is_ok() {
            let overhead = cipher.overhead();
            assert!(datagram.len() >= overhead.header_len + overhead.trailer_len);
        }
        round_trip(&**packet_cipher, rest);
    }
}

/// Seals `body` and parts of it in one batch, and opens the packets again.
fn round_trip(cipher: &dyn PacketCipher, body: &[u8]) {
    let overhead = cipher.overhead();
    let (head, tail) = (overhead.header_len, overhead.trailer_len);
    let nonce = |index: u8| (0..overhead.nonce).map(move |i| index ^ i.to_le_bytes()[0]);
    let bodies = [body, &body[..body.len() / 2], &[], &body[body.len() / 3..]];
    let mut packets: Vec<Vec<u8>> = (0..)
        .zip(bodies)
        .map(|(index, body)| {
            let mut packet: Vec<u8> = nonce(index).collect();
            packet.resize(head, 0);
            packet.extend_from_slice(body);
            packet.resize(head + body.len() + tail, 0);
            packet
        })
        .collect();
    let mut slices: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
    cipher.seal(&mut slices);
    for ((index, body), mut packet) in (0..).zip(bodies).zip(packets) {
        cipher.open(&mut packet).expect("sealed just now");
        assert_eq!(&packet[head..packet.len() - tail], body);
        assert!(packet.iter().copied().take(overhead.nonce).eq(nonce(index)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn survives_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            open_packet(&data);
        }
    }
}
