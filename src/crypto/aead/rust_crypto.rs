//! AEADs of RustCrypto: every platform, no C compiler.

use std::sync::Arc;

use aes::{Aes128Enc, Aes192Enc, Aes256Enc};
use aes_gcm::AesGcm;
use aes_gcm::aead::{AeadInOut, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;
use cipher::InvalidLength;
use cipher::consts::{U12, U16};

use super::{Aead, Backend, Nonce, Tag};
use crate::crypto::packet_cipher::{OpenError, PacketCipher};

struct Detached<A>(A);

impl<A> Backend for Detached<A>
where
    A: AeadInOut<NonceSize = U12, TagSize = U16> + Send + Sync + 'static,
{
    fn encrypt(&self, nonce: &Nonce, body: &mut [u8]) -> Option<Tag> {
        self.0.encrypt_inout_detached(nonce.into(), &[], body.into()).ok().map(Into::into)
    }

    fn decrypt(&self, nonce: &Nonce, body: &mut [u8], tag: &Tag) -> Result<(), OpenError> {
        self.0
            .decrypt_inout_detached(nonce.into(), &[], body.into(), tag.into())
            .map_err(|_| OpenError)
    }
}

/// AES-GCM; `None` unless the key has 16, 24 or 32 bytes.
pub(in crate::crypto) fn aes_gcm(name: &'static str, key: &[u8]) -> Option<Arc<dyn PacketCipher>> {
    match key.len() {
        16 => wrap(name, AesGcm::<Aes128Enc, U12>::new_from_slice(key)),
        24 => wrap(name, AesGcm::<Aes192Enc, U12>::new_from_slice(key)),
        _ => wrap(name, AesGcm::<Aes256Enc, U12>::new_from_slice(key)),
    }
}

/// ChaCha20-Poly1305; `None` unless the key has 32 bytes.
pub(in crate::crypto) fn chacha20_poly1305(
    name: &'static str,
    key: &[u8],
) -> Option<Arc<dyn PacketCipher>> {
    wrap(name, ChaCha20Poly1305::new_from_slice(key))
}

fn wrap<A>(name: &'static str, keyed: Result<A, InvalidLength>) -> Option<Arc<dyn PacketCipher>>
where
    A: AeadInOut<NonceSize = U12, TagSize = U16> + Send + Sync + 'static,
{
    Some(Arc::new(Aead { name, backend: Detached(keyed.ok()?) }))
}
