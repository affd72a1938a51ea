//! Packet nonces: unique within an endpoint, unpredictable to others, and recognizable as own.
//!
//! The first eight bytes are a keyed permutation of a counter, so they are unique. The shard number
//! is part of the counter, so the sockets of an endpoint need no coordination. The following bytes
//! are a keyed tag of the first eight. The tag lets an endpoint detect reflected packets. Between
//! endpoints that share a cipher key, it makes a nonce collision as rare as with random nonces.
//! Deviates: kcp-go draws random nonces.
//!
//! No system call, no lock, no clock: the secret is an argument.

use std::fmt;

use aes::{Aes128Enc, Block};
use cipher::{BlockCipherEncrypt, KeyInit};
use siphasher::sip::SipHasher24;
use zeroize::{Zeroize, Zeroizing};

/// Bytes of the permuted counter, and of a word of the tag.
const WORD_LEN: usize = 8;
/// Shortest nonce that carries a tag: 8 bytes, then 4 bytes of tag.
pub(crate) const MIN_TAGGED_NONCE_LEN: usize = 12;
/// Bits of the counter below the shard number.
const COUNTER_BITS: u32 = 56;
/// Rounds of the Feistel permutation: five hide its structure from an observer of fewer than 2^32
/// nonces, one is a margin.
const ROUNDS: u8 = 6;
/// Nonces permuted at once: AES is fastest on many blocks.
const AHEAD: usize = 64;

/// Secret of an endpoint's nonces, shared by its sockets. Wiped on drop.
#[derive(Clone)]
pub(crate) struct NonceSecret {
    permutation: Aes128Enc,
    tag: Zeroizing<[u64; 2]>,
}

impl NonceSecret {
    /// A secret from 32 random bytes, drawn once per endpoint.
    pub(crate) fn new(random: &[u8; 32]) -> Self {
        let (permutation, tag) = random.split_at(16);
        let permutation = permutation.first_chunk::<16>().copied().unwrap_or_default();
        let mut words = Zeroizing::new([0; 2]);
        for (word, bytes) in words.iter_mut().zip(tag.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { permutation: Aes128Enc::new(&permutation.into()), tag: words }
    }

    /// Whether this endpoint generated the nonce, which has at least twelve bytes.
    ///
    /// False positives: one in 2^32 with twelve bytes, one in 2^64 with sixteen or more.
    pub(crate) fn is_own(&self, nonce: &[u8]) -> bool {
        if nonce.len() < MIN_TAGGED_NONCE_LEN {
            return false;
        }
        let Some((id, tag)) = nonce.split_first_chunk() else { return false };
        // Not constant-time: the tag is no secret, most ciphers send it in the clear.
        let own = self.tag_word(u64::from_le_bytes(*id), 0);
        match tag.first_chunk() {
            Some(tag) => *tag == own,
            None => own.starts_with(tag),
        }
    }

    /// Returns bytes `8 * index..` of the tag.
    #[inline]
    fn tag_word(&self, id: u64, index: u64) -> [u8; WORD_LEN] {
        let [key0, key1] = *self.tag;
        // Built for each call: the hasher is not wiped on drop.
        let hasher = SipHasher24::new_with_keys(key0, key1);
        let id = id.to_le_bytes();
        let tag = if index == 0 {
            hasher.hash(&id)
        } else {
            hasher.hash([id, index.to_le_bytes()].as_flattened())
        };
        tag.to_le_bytes()
    }

    /// Permutes the counters: a Feistel network with AES as round function.
    fn permute(&self, counters: [u64; AHEAD]) -> [u64; AHEAD] {
        let mut left = counters.map(high);
        let mut right = counters.map(low);
        let mut blocks = [Block::default(); AHEAD];
        for round in 0..ROUNDS {
            for (block, right) in blocks.iter_mut().zip(right) {
                *block = round_input(round, right);
            }
            self.permutation.encrypt_blocks(&mut blocks);
            for (left, block) in left.iter_mut().zip(&blocks) {
                *left ^= first_word(block);
            }
            (left, right) = (right, left);
        }
        let mut halves = left.into_iter().zip(right);
        [(); AHEAD].map(|()| halves.next().map_or(0, |(left, right)| join(left, right)))
    }
}

fn high(counter: u64) -> u32 {
    (counter >> 32) as u32
}

#[expect(clippy::cast_possible_truncation, reason = "the other half is `high`")]
fn low(counter: u64) -> u32 {
    counter as u32
}

fn join(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn round_input(round: u8, half: u32) -> Block {
    (u128::from(half) | u128::from(round) << 32).to_le_bytes().into()
}

fn first_word(block: &Block) -> u32 {
    block.first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

impl fmt::Debug for NonceSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NonceSecret(..)")
    }
}

/// Generator of one socket's nonces.
pub(crate) struct NonceSource {
    secret: NonceSecret,
    shard: u64,
    /// Number of nonces generated.
    count: u64,
    /// The 64 permuted counters that the last nonce is among.
    ahead: Box<[u64; AHEAD]>,
}

impl NonceSource {
    /// Sockets of one endpoint share `secret` and differ in `shard`.
    pub(crate) fn new(secret: &NonceSecret, shard: u8) -> Self {
        let shard = u64::from(shard) << COUNTER_BITS;
        Self { secret: secret.clone(), shard, count: 0, ahead: Box::new([0; AHEAD]) }
    }

    /// Returns the number of nonces generated, hence of packets sealed by this socket.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Writes a nonce of `nonce_len` bytes at the start of each packet; nothing if `nonce_len` is
    /// zero.
    pub(crate) fn fill(&mut self, nonce_len: usize, packets: &mut [&mut [u8]]) {
        if nonce_len == 0 {
            return;
        }
        for packet in packets.iter_mut() {
            let id = self.next();
            let len = nonce_len.min(packet.len());
            let nonce = packet.get_mut(..len).unwrap_or_default();
            if let Some((start, rest)) = nonce.split_first_chunk_mut() {
                *start = id.to_le_bytes();
                let (words, tail) = rest.as_chunks_mut();
                let mut index = 0;
                for word in words {
                    *word = self.secret.tag_word(id, index);
                    index += 1;
                }
                if !tail.is_empty() {
                    let word = self.secret.tag_word(id, index);
                    tail.iter_mut().zip(word).for_each(|(to, from)| *to = from);
                }
            }
        }
    }

    fn next(&mut self) -> u64 {
        let at = self.count % AHEAD as u64;
        if at == 0 {
            self.refill();
        }
        self.count += 1;
        usize::try_from(at).ok().and_then(|at| self.ahead.get(at)).copied().unwrap_or_default()
    }

    /// Permutes the next 64 counters.
    fn refill(&mut self) {
        // 2^56 packets exceed the lifetime of a socket.
        let mut counters = (self.count..).map(|count| self.shard | count);
        *self.ahead = self.secret.permute([(); AHEAD].map(|()| counters.next().unwrap_or(0)));
    }
}

impl fmt::Debug for NonceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NonceSource").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Drop for NonceSource {
    fn drop(&mut self) {
        self.ahead.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn secret(seed: u8) -> NonceSecret {
        NonceSecret::new(&std::array::from_fn(|i| seed ^ (i as u8).wrapping_mul(37)))
    }

    fn take(source: &mut NonceSource, len: usize) -> Vec<u8> {
        let mut packet = vec![0; len];
        source.fill(len, &mut [&mut packet]);
        packet
    }

    /// The counter that a nonce was made of.
    fn invert(secret: &NonceSecret, id: u64) -> u64 {
        let (mut left, mut right) = (high(id), low(id));
        for round in (0..ROUNDS).rev() {
            let mut block = round_input(round, left);
            secret.permutation.encrypt_block(&mut block);
            (left, right) = (right ^ first_word(&block), left);
        }
        join(left, right)
    }

    /// Rule: P-58.
    #[test]
    fn nonce_prefix_is_unique_among_shards() {
        let secret = secret(1);
        let mut seen = HashSet::new();
        for shard in [0, 1, 7, 255] {
            let mut source = NonceSource::new(&secret, shard);
            for _ in 0..1 << 18 {
                let mut id = [0; 8];
                source.fill(8, &mut [&mut id]);
                assert!(seen.insert(id));
            }
            assert_eq!(source.count(), 1 << 18);
        }
        assert_eq!(seen.len(), 1 << 20);
    }

    /// Rule: P-58.
    #[test]
    fn nonce_prefix_is_the_permuted_counter() {
        let secret = secret(2);
        let mut source = NonceSource::new(&secret, 3);
        for count in 0..1_000 {
            let id = take(&mut source, 12)[..8].try_into().unwrap();
            assert_eq!(invert(&secret, u64::from_le_bytes(id)), 3 << 56 | count);
        }
    }

    #[test]
    fn shorter_nonce_is_a_prefix_of_a_longer_one() {
        let long = take(&mut NonceSource::new(&secret(3), 0), 256);
        for len in 1..256 {
            let nonce = take(&mut NonceSource::new(&secret(3), 0), len);
            if len >= 8 {
                assert_eq!(nonce, long[..len]);
            } else {
                assert_eq!(nonce, vec![0; len], "no part of the first eight without the rest");
            }
        }
    }

    #[test]
    fn words_of_a_nonce_are_distinct() {
        let mut source = NonceSource::new(&secret(3), 0);
        let mut words = HashSet::new();
        for _ in 0..100 {
            let nonce = take(&mut source, 256);
            words.extend(nonce.as_chunks::<8>().0.iter().copied());
        }
        assert_eq!(words.len(), 100 * 32);
    }

    #[test]
    fn fill_writes_the_nonce_only() {
        let mut source = NonceSource::new(&secret(4), 0);
        let mut packets = vec![vec![0xee; 40]; 100];
        let mut slices: Vec<&mut [u8]> = packets.iter_mut().map(|p| &mut p[..]).collect();
        source.fill(0, &mut slices);
        assert_eq!(source.count(), 0);
        source.fill(16, &mut slices);
        assert_eq!(source.count(), 100);
        assert!(packets.iter().all(|packet| packet[16..] == [0xee; 24]));
        assert_eq!(packets.iter().collect::<HashSet<_>>().len(), 100);
    }

    /// Rule: P-59.
    #[test]
    fn own_nonces_are_detected_and_no_others() {
        let (ours, theirs) = (secret(5), secret(6));
        for len in [12, 16, 20, 24, 40] {
            let (mut own, mut other) = (NonceSource::new(&ours, 9), NonceSource::new(&theirs, 9));
            for _ in 0..100_000 {
                assert!(ours.is_own(&take(&mut own, len)));
                assert!(!ours.is_own(&take(&mut other, len)));
            }
        }
        assert!(!ours.is_own(&take(&mut NonceSource::new(&ours, 0), 11)));
        assert!(!ours.is_own(&[]));
    }

    #[test]
    fn nonce_with_a_flipped_bit_is_not_own() {
        let secret = secret(7);
        let nonce = take(&mut NonceSource::new(&secret, 0), 16);
        for bit in 0..128 {
            let mut altered = nonce.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.is_own(&altered));
        }
    }

    #[test]
    fn nonce_bits_are_unbiased() {
        let mut source = NonceSource::new(&secret(8), 0);
        let mut ones = [0; 128];
        for _ in 0..10_000 {
            let nonce = take(&mut source, 16);
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += u32::from(nonce[bit / 8] >> (bit % 8) & 1);
            }
        }
        // Seven standard deviations.
        assert!(ones.iter().all(|count| (4_650..5_350).contains(count)), "{ones:?}");
    }

    #[test]
    fn debug_hides_the_secret() {
        assert_eq!(format!("{:?}", secret(9)), "NonceSecret(..)");
        let shown = format!("{:?}", NonceSource::new(&secret(9), 0));
        assert_eq!(shown, "NonceSource { count: 0, .. }");
    }

    proptest! {
        #[test]
        fn permutation_is_invertible(key: [u8; 32], counters: [[u64; 32]; 2]) {
            let secret = NonceSecret::new(&key);
            let counters: [u64; AHEAD] = counters.concat().try_into().unwrap();
            for (counter, id) in counters.into_iter().zip(secret.permute(counters)) {
                prop_assert_eq!(invert(&secret, id), counter);
            }
        }
    }

    #[test]
    fn tag_is_the_siphash_of_its_paper() {
        let mut random = [0; 32];
        random[16..].copy_from_slice(&std::array::from_fn::<u8, 16, _>(|i| i as u8));
        let secret = NonceSecret::new(&random);
        // Vectors of the reference implementation for 8 and 16 bytes.
        let [id, index] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(u64::from_le_bytes(secret.tag_word(id, 0)), 0x93f5_f579_9a93_2462);
        assert_eq!(u64::from_le_bytes(secret.tag_word(id, index)), 0x3f2a_cc7f_57c2_9bdb);
    }
}
