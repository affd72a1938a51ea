//! AEADs of AWS-LC: assembly for most processors; needs a C compiler to build.

use std::sync::Arc;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey,
    Nonce as Unique, UnboundKey,
};

use super::{Aead, Backend, Nonce, Tag};
use crate::crypto::packet_cipher::{OpenError, PacketCipher};

impl Backend for LessSafeKey {
    fn encrypt(&self, nonce: &Nonce, body: &mut [u8]) -> Option<Tag> {
        let nonce = Unique::assume_unique_for_key(*nonce);
        let tag = self.seal_in_place_separate_tag(nonce, Aad::empty(), body).ok()?;
        tag.as_ref().try_into().ok()
    }

    fn decrypt(&self, nonce: &Nonce, body: &mut [u8], tag: &Tag) -> Result<(), OpenError> {
        let nonce = Unique::assume_unique_for_key(*nonce);
        match self.open_in_place_separate_tag(nonce, Aad::empty(), tag, body) {
            Ok(_) => Ok(()),
            Err(_) => Err(OpenError),
        }
    }
}

/// AES-GCM; `None` unless the key has 16, 24 or 32 bytes.
pub(in crate::crypto) fn aes_gcm(name: &'static str, key: &[u8]) -> Option<Arc<dyn PacketCipher>> {
    let algorithm = match key.len() {
        16 => &AES_128_GCM,
        24 => &AES_192_GCM,
        _ => &AES_256_GCM,
    };
    wrap(name, algorithm, key)
}

/// ChaCha20-Poly1305; `None` unless the key has 32 bytes.
pub(in crate::crypto) fn chacha20_poly1305(
    name: &'static str,
    key: &[u8],
) -> Option<Arc<dyn PacketCipher>> {
    wrap(name, &CHACHA20_POLY1305, key)
}

fn wrap(
    name: &'static str,
    algorithm: &'static Algorithm,
    key: &[u8],
) -> Option<Arc<dyn PacketCipher>> {
    let backend = LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?);
    Some(Arc::new(Aead { name, backend }))
}
