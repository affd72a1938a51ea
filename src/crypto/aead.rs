//! AEAD ciphers (AES-GCM, ChaCha20-Poly1305): two backends with the same wire format.

#[cfg(feature = "aws-lc-rs")]
mod aws_lc;
mod packet;
// Tests compare both backends.
#[cfg(any(test, not(feature = "aws-lc-rs")))]
mod rust_crypto;

#[cfg(feature = "aws-lc-rs")]
pub(super) use aws_lc::{aes_gcm, chacha20_poly1305};
#[cfg(not(feature = "aws-lc-rs"))]
pub(super) use rust_crypto::{aes_gcm, chacha20_poly1305};

#[cfg(all(test, feature = "aws-lc-rs"))]
mod tests {
    use super::packet::TAG_LEN;
    use super::*;

    #[test]
    fn aead_packets_of_both_backends_are_equal() {
        let key: [u8; 32] = std::array::from_fn(|i| i as u8 * 7);
        let pairs = [
            (aes_gcm("", &key[..16]), rust_crypto::aes_gcm("", &key[..16])),
            (aes_gcm("", &key[..24]), rust_crypto::aes_gcm("", &key[..24])),
            (aes_gcm("", &key), rust_crypto::aes_gcm("", &key)),
            (chacha20_poly1305("", &key), rust_crypto::chacha20_poly1305("", &key)),
        ];
        for (one, other) in pairs {
            let (one, other) = (one.unwrap(), other.unwrap());
            for len in (28..300).chain([1_400, 1_500, 65_507]) {
                let plain: Vec<u8> = (0..len).map(|i| (i * 31) as u8).collect();
                let (mut a, mut b) = (plain.clone(), plain.clone());
                one.seal(&mut [&mut a]);
                other.seal(&mut [&mut b]);
                assert_eq!(a, b, "{len} bytes");
                one.open(&mut b).unwrap();
                other.open(&mut a).unwrap();
                assert_eq!(a[..len - TAG_LEN], plain[..len - TAG_LEN]);
                assert_eq!(b[..len - TAG_LEN], plain[..len - TAG_LEN]);
            }
        }
    }
}
