//! Tests of every cipher.

mod vectors;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::error::ConfigError;

/// The key of the specification's vectors: bytes 0, 1, 2 and so on.
const KEY: [u8; 32] = {
    let mut key = [0; 32];
    let mut at = 0;
    while at < 32 {
        key[at] = at as u8;
        at += 1;
    }
    key
};

fn cipher(algorithm: Algorithm) -> Cipher {
    Cipher::new(algorithm, &KEY[..algorithm.key_len()]).unwrap()
}

fn all() -> impl Iterator<Item = (Algorithm, Cipher)> {
    Algorithm::ALL.iter().map(|algorithm| (*algorithm, cipher(*algorithm)))
}

/// An unsealed packet with this body, its nonce counting up from `nonce`.
fn packet(cipher: &Cipher, nonce: u8, body: &[u8]) -> Vec<u8> {
    let Overhead { nonce: nonce_len, header_len: head, trailer_len: tail } = cipher.overhead();
    let mut packet: Vec<u8> = (nonce..).take(nonce_len).collect();
    packet.resize(head, 0xee);
    packet.extend_from_slice(body);
    packet.resize(head + body.len() + tail, 0xee);
    packet
}

fn sealed(cipher: &Cipher, nonce: u8, body: &[u8]) -> Vec<u8> {
    let mut packet = packet(cipher, nonce, body);
    cipher.seal(&mut [&mut packet]);
    packet
}

fn seal_all(cipher: &Cipher, packets: &mut [Vec<u8>]) {
    let mut slices: Vec<&mut [u8]> = packets.iter_mut().map(Vec::as_mut_slice).collect();
    cipher.seal(&mut slices);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + (i >> 8) * 7) as u8).collect()
}

/// Rule: W-3.
#[test]
fn overhead_of_each_cipher_equals_kcp_gos() {
    for (algorithm, cipher) in all() {
        let Overhead { nonce, header_len: head, trailer_len: tail } = cipher.overhead();
        let expected = match algorithm {
            Algorithm::Null => (0, 0, 0),
            Algorithm::Aes128Gcm
            | Algorithm::Aes192Gcm
            | Algorithm::Aes256Gcm
            | Algorithm::ChaCha20Poly1305 => (12, 12, 16),
            _ => (16, 20, 0),
        };
        assert_eq!((nonce, head, tail), expected, "{algorithm}");
        cipher.check().unwrap();
    }
}

#[test]
fn packets_of_every_length_open_to_their_body() {
    for (algorithm, cipher) in all() {
        let Overhead { nonce, header_len: head, trailer_len: tail } = cipher.overhead();
        for len in (0..200).chain([1_375, 1_400, 1_480, 1_500, 9_000, 65_400]) {
            let body = pattern(len);
            let mut packet = sealed(&cipher, 9, &body);
            assert!(
                len < 8
                    || algorithm == Algorithm::None
                    || packet[head..][..len] != body
                    || head == 0
            );
            cipher.open(&mut packet).unwrap();
            assert!(packet[head..head + len] == body, "{algorithm} {len}");
            assert!(packet[..nonce].iter().copied().eq((9..).take(nonce)), "{algorithm} {len}");
            assert_eq!(packet.len(), head + len + tail);
        }
    }
}

#[test]
fn truncated_packets_are_refused() {
    for (algorithm, cipher) in all().skip(1) {
        for len in [0, 1, 15, 16, 17, 100] {
            let packet = sealed(&cipher, 3, &pattern(len));
            let least = cipher.overhead().header_len + cipher.overhead().trailer_len;
            for cut in 0..packet.len() {
                let mut short = packet[..cut].to_vec();
                let refused = cipher.open(&mut short) == Err(OpenError);
                // Even an intact prefix fails: its checksum covers the whole body.
                assert!(refused, "{algorithm}: {cut} of {}", packet.len());
                assert!(refused || cut >= least);
            }
        }
    }
}

/// Bytes of the nonce that nothing protects: a flipped bit there still opens to the same body.
///
/// In CFB a flipped bit garbles the next block. With blocks of eight bytes that block is still
/// nonce, with blocks of sixteen it holds checksum and body.
fn unprotected(algorithm: Algorithm) -> std::ops::Range<usize> {
    match algorithm {
        Algorithm::None | Algorithm::Xor => 0..16,
        // The first half selects the key stream.
        Algorithm::Salsa20 => 8..16,
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::TripleDes
        | Algorithm::Blowfish
        | Algorithm::Cast5
        | Algorithm::Tea
        | Algorithm::Xtea => 0..8,
        // An AEAD protects all of it. With blocks of sixteen, the next block holds the checksum.
        _ => 0..0,
    }
}

#[test]
fn flipped_bit_is_refused_or_in_the_unprotected_nonce() {
    for (algorithm, cipher) in all().skip(1) {
        let (nonce, head) = (cipher.overhead().nonce, cipher.overhead().header_len);
        for len in [12, 24, 45, 100] {
            let body = pattern(len);
            let packet = sealed(&cipher, 77, &body);
            for bit in 0..8 * packet.len() {
                let mut flipped = packet.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let opened = cipher.open(&mut flipped);
                if unprotected(algorithm).contains(&(bit / 8)) {
                    assert_eq!(opened, Ok(()), "{algorithm}: bit {bit}");
                    assert_eq!(flipped[head..], body);
                    assert!(!flipped[..nonce].iter().copied().eq((77..).take(nonce)));
                } else {
                    assert_eq!(opened, Err(OpenError), "{algorithm}: bit {bit} of {len} bytes");
                }
            }
        }
    }
}

#[test]
fn packet_of_another_key_is_refused() {
    for (algorithm, cipher) in all().skip(2) {
        let mut key = KEY;
        key[3] ^= 0x40;
        let other = Cipher::new(algorithm, &key[..algorithm.key_len()]).unwrap();
        assert_eq!(other.open(&mut sealed(&cipher, 0, &pattern(100))), Err(OpenError));
    }
}

#[test]
fn short_slices_do_not_disturb_their_batch() {
    for (_, cipher) in all() {
        for len in 0..40 {
            let (mut short, mut long) = (vec![1; len], packet(&cipher, 0, &pattern(50)));
            cipher.seal(&mut [&mut short, &mut long]);
            assert_eq!(cipher.open(&mut long), Ok(()));
        }
        cipher.seal(&mut []);
    }
}

#[test]
fn cipher_is_usable_from_several_threads() {
    for (algorithm, cipher) in all() {
        let body = pattern(300);
        let expected = sealed(&cipher, 5, &body);
        std::thread::scope(|scope| {
            let seals = || (0..200).all(|_| sealed(&cipher, 5, &body) == expected);
            let opens = || (0..200).all(|_| cipher.open(&mut expected.clone()).is_ok());
            let threads = [scope.spawn(seals), scope.spawn(seals)];
            let (first, second) = (scope.spawn(opens), scope.spawn(opens));
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()), "{algorithm}");
            assert!(first.join().unwrap() && second.join().unwrap(), "{algorithm}");
        });
    }
}

#[test]
fn batch_of_any_size_equals_single_packets() {
    for (algorithm, cipher) in all() {
        for count in 1..=40 {
            // Acknowledgements among full packets, and other lengths between.
            let len = |i: usize| match i % 3 {
                0 => 1_400,
                1 => (i * 577 + count * 131) % 1_501,
                _ => 24 + i % 5,
            };
            let packets = (0..count).map(|i| packet(&cipher, i as u8, &pattern(len(i))));
            let mut batch: Vec<_> = packets.collect();
            let mut single = batch.clone();
            seal_all(&cipher, &mut batch);
            single.iter_mut().for_each(|packet| cipher.seal(&mut [packet]));
            assert!(batch == single, "{algorithm}: {count} packets");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn batch_of_random_lengths_equals_single_packets(
        lens in vec(0_usize..=1_500, 1..=40),
    ) {
        for (algorithm, cipher) in all() {
            let packets = lens.iter().zip(0..).map(|(len, i)| packet(&cipher, i, &pattern(*len)));
            let mut batch: Vec<_> = packets.collect();
            let mut single = batch.clone();
            seal_all(&cipher, &mut batch);
            single.iter_mut().for_each(|packet| cipher.seal(&mut [packet]));
            prop_assert!(batch == single, "{}", algorithm);
        }
    }

    #[test]
    fn arbitrary_bytes_do_not_panic_open(data in vec(any::<u8>(), 0..200)) {
        for (_, cipher) in all().skip(1) {
            let mut datagram = data.clone();
            if cipher.open(&mut datagram).is_ok() {
                prop_assert!(data.len() >= cipher.overhead().header_len + cipher.overhead().trailer_len);
            }
        }
    }
}

#[test]
fn algorithm_name_parses_to_the_algorithm() {
    for algorithm in Algorithm::ALL {
        assert_eq!(Algorithm::from_name(algorithm.name()), Ok(*algorithm));
        assert_eq!(algorithm.to_string().parse(), Ok(*algorithm));
        assert_eq!(cipher(*algorithm).name(), algorithm.name());
    }
    assert_eq!(Algorithm::from_name("aes"), Ok(Algorithm::Aes256));
    assert_eq!(format!("{:>9}|", Algorithm::Aes128), "  aes-128|");
}

#[test]
fn unknown_cipher_name_error_lists_the_names() {
    let key = Key::derive("passphrase", Key::KCPTUN_SALT);
    let error = Cipher::from_name("AES", &key).unwrap_err().to_string();
    let start = "unknown cipher \"AES\": use one of null, none, aes-128, aes-192, aes-256, aes-128-gcm, \
        aes-192-gcm, aes-256-gcm, chacha20-poly1305, salsa20, xor";
    assert!(error.starts_with(start), "{error}");
    assert_eq!(cfg!(feature = "legacy-ciphers"), error.ends_with("sm4, tea, twofish, xtea"));
    #[cfg(not(feature = "legacy-ciphers"))]
    for name in ["3des", "blowfish", "cast5", "sm4", "tea", "twofish", "xtea"] {
        assert_eq!(
            Cipher::from_name(name, &key).unwrap_err().to_string(),
            format!("cipher \"{name}\" requires the feature `legacy-ciphers` of kcpx")
        );
    }
}

#[test]
fn cipher_from_name_uses_the_leading_key_bytes() {
    let key = Key::new(KEY);
    for algorithm in Algorithm::ALL {
        let named = Cipher::from_name(algorithm.name(), &key).unwrap();
        let body = pattern(60);
        assert_eq!(sealed(&named, 1, &body), sealed(&cipher(*algorithm), 1, &body));
    }
    let error = Cipher::from_name("aes", &Key::new([1; 31])).unwrap_err();
    assert_eq!(error.to_string(), "the key of aes-256 must have 32 or more bytes, got 31");
    assert_eq!(Cipher::from_name("null", &Key::new([])), Ok(Cipher::null()));
}

#[test]
fn key_of_wrong_length_is_refused() {
    for algorithm in Algorithm::ALL {
        let allowed = |len: usize| match algorithm {
            Algorithm::Null | Algorithm::None => true,
            Algorithm::Xor => len > 0,
            #[cfg(feature = "legacy-ciphers")]
            Algorithm::Blowfish => (1..=56).contains(&len),
            #[cfg(feature = "legacy-ciphers")]
            Algorithm::Twofish => [16, 24, 32].contains(&len),
            _ => len == algorithm.key_len(),
        };
        for len in 0..80 {
            let made = Cipher::new(*algorithm, &vec![7; len]);
            assert_eq!(made.is_ok(), allowed(len), "{algorithm} {len}");
            if made.is_ok_and(|cipher| cipher == Cipher::null()) {
                assert_eq!(*algorithm, Algorithm::Null);
            }
        }
    }
    let error = Cipher::new(Algorithm::Salsa20, &[1; 16]).unwrap_err();
    assert_eq!(error.to_string(), "the key of salsa20 must have 32 bytes, got 16");
}

#[test]
fn cipher_equals_its_clones_only() {
    let one = cipher(Algorithm::Aes128);
    assert_eq!(one, one.clone());
    assert_ne!(one, cipher(Algorithm::Aes128));
    assert_ne!(one, Cipher::null());
    assert_eq!(Cipher::default(), Cipher::null());
}

#[test]
fn debug_shows_the_name_and_no_key() {
    for (algorithm, cipher) in all() {
        assert_eq!(format!("{cipher:?}"), format!("Cipher({algorithm})"));
        let inside = format!("{:?}", cipher.packet_cipher());
        assert!(inside.len() < 32 && (inside == "None") == (algorithm == Algorithm::Null));
    }
}

/// A custom cipher with any overhead.
#[derive(Debug)]
struct Custom(Overhead);

impl PacketCipher for Custom {
    fn overhead(&self) -> Overhead {
        self.0
    }

    fn seal(&self, _: &mut [&mut [u8]]) {}

    fn open(&self, _: &mut [u8]) -> Result<(), OpenError> {
        Ok(())
    }
}

#[test]
fn overhead_of_a_custom_cipher_is_checked() {
    let check = |nonce, head, tail| {
        Cipher::custom(Custom(Overhead { nonce, header_len: head, trailer_len: tail }))
            .check()
            .map_err(|e| e.to_string())
    };
    assert_eq!(check(0, 0, 0), Ok(()));
    assert_eq!(check(24, 24, 16), Ok(()));
    assert_eq!(check(8, 200, 56), Ok(()));
    let refused = |text: &str| Err(text.to_owned());
    for nonce in [1, 7] {
        let text = format!("cipher nonce (bytes) must be between 8 and 256, got {nonce}");
        assert_eq!(check(nonce, 20, 0), refused(&text));
    }
    assert_eq!(check(16, 15, 0), refused("cipher head (bytes) must be between 16 and 256, got 15"));
    assert_eq!(
        check(8, 200, 57),
        refused("cipher head and tail (bytes) must be between 0 and 256, got 257")
    );
    assert_eq!(
        check(0, 1, usize::MAX),
        refused(&format!(
            "cipher head and tail (bytes) must be between 0 and 256, got {}",
            u64::MAX
        ))
    );
    assert_eq!(Cipher::custom(Custom(Overhead::ZERO)).name(), "custom");
}

#[test]
fn derived_key_equals_kcptuns() {
    let key = Key::derive("it's a secrect", Key::KCPTUN_SALT);
    let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "25d7d7bd51050742d8d791f2b653c6c8b2366b7e25a124cf7a2e12eaf4ffa444");
}

#[test]
fn debug_hides_the_key() {
    assert_eq!(format!("{:?}", Key::new([7; 32])), "Key(..)");
    assert_eq!(format!("{:#?}", Some(Key::new("secret"))), "Some(\n    Key(..),\n)");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn cfb_equals_cfb_mode(
        key: [u8; 32],
        lens in vec(0_usize..=1_500, 1..=40),
        salt: u8,
    ) {
        let key_lens = [1, 5, 16, 24, 32];
        let pairs = Algorithm::ALL.iter().flat_map(|algorithm| key_lens.map(|len| (algorithm, len)));
        for (algorithm, key_len) in pairs {
            if Cipher::new(*algorithm, &key[..key_len]).is_err() {
                continue;
            }
            let Some(oracle) = oracle(*algorithm, &key[..key_len]) else { continue };
            let transform = transform(*algorithm, &key[..key_len]).unwrap();
            let plain: Vec<Vec<u8>> = lens
                .iter()
                .map(|len| pattern(*len).iter().map(|byte| byte ^ salt).collect())
                .collect();
            let mut ours = plain.clone();
            let mut slices: Vec<&mut [u8]> = ours.iter_mut().map(Vec::as_mut_slice).collect();
            transform.encrypt(&mut slices);
            for (ours, plain) in ours.iter_mut().zip(plain) {
                let mut theirs = plain.clone();
                oracle(&mut theirs);
                prop_assert!(*ours == theirs, "{}: {} bytes", algorithm, plain.len());
                transform.decrypt(ours);
                prop_assert!(*ours == plain, "{}: {} bytes", algorithm, plain.len());
            }
        }
    }
}

type Oracle = Box<dyn Fn(&mut [u8])>;

/// Encryption by cfb-mode, over the same block cipher.
fn oracle(algorithm: Algorithm, key: &[u8]) -> Option<Oracle> {
    match algorithm {
        Algorithm::Aes128 => Some(by_cfb_mode::<aes::Aes128>(key)),
        Algorithm::Aes192 => Some(by_cfb_mode::<aes::Aes192>(key)),
        Algorithm::Aes256 => Some(by_cfb_mode::<aes::Aes256>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::TripleDes => Some(by_cfb_mode::<des::TdesEde3>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Blowfish if key.len() < 4 => {
            // The crate needs four bytes or more; repeating the key yields the same schedule.
            Some(by_cfb_mode::<blowfish::Blowfish>(&key.repeat(7)))
        }
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Blowfish => Some(by_cfb_mode::<blowfish::Blowfish>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Cast5 => Some(by_cfb_mode::<cast5::Cast5>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Sm4 => Some(by_cfb_mode::<sm4::Sm4>(key)),
        #[cfg(feature = "legacy-ciphers")]
        Algorithm::Twofish => Some(by_cfb_mode::<twofish::Twofish>(key)),
        _ => None,
    }
}

fn by_cfb_mode<C>(key: &[u8]) -> Oracle
where
    C: ::cipher::BlockCipherEncrypt + ::cipher::KeyInit + 'static,
{
    use ::cipher::InnerIvInit;
    let iv = 0xa773_4f9c_12ac_1b01_a415_f2c1_fc78_e66b_u128.to_be_bytes();
    let cipher = C::new_from_slice(key).unwrap();
    Box::new(move |bytes| {
        let iv = iv[..C::block_size()].try_into().unwrap();
        cfb_mode::Encryptor::<&C>::inner_iv_init(&cipher, iv).encrypt(bytes);
    })
}
