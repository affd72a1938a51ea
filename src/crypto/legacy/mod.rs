//! kcp-go's older block ciphers, all in cipher feedback.
//!
//! All are crates except TEA, which has kcp-go's 16 rounds here. XTEA is wrapped in kcp-go's byte
//! order.

mod tea;
mod xtea;

use blowfish::Blowfish;
use cast5::Cast5;
use des::TdesEde3;
use sm4::Sm4;
use twofish::Twofish;
use zeroize::Zeroizing;

use super::algorithm::Algorithm;
use super::cfb;
use super::frame::Transform;
use tea::Tea;
use xtea::Xtea;

/// The bare encryption of an older algorithm; `None` for other algorithms and wrong key lengths.
pub(super) fn transform(algorithm: Algorithm, key: &[u8]) -> Option<Box<dyn Transform>> {
    match algorithm {
        Algorithm::TripleDes => cfb::new::<TdesEde3, 4>(key),
        Algorithm::Blowfish => {
            // The schedule repeats the key, so repeating a short key yields the same schedule and
            // meets the crate's minimum of four bytes.
            let key = Zeroizing::new(if key.len() < 4 { key.repeat(4) } else { key.to_vec() });
            cfb::new::<Blowfish, 4>(&key)
        }
        Algorithm::Cast5 => cfb::new::<Cast5, 4>(key),
        Algorithm::Sm4 => cfb::new::<Sm4, 4>(key),
        Algorithm::Tea => cfb::new::<Tea, { tea::LANES }>(key),
        Algorithm::Twofish => cfb::new::<Twofish, 4>(key),
        Algorithm::Xtea => cfb::new::<Xtea, 4>(key),
        _ => None,
    }
}
