//! XTEA of the crate `xtea` on big-endian words, as in kcp-go; the crate's are little-endian.

use cipher::common::{BlockSizeUser, KeySizeUser, ParBlocksSizeUser};
use cipher::consts::{U1, U8, U16};
use cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, InOut, Key, KeyInit,
};
use zeroize::Zeroizing;

/// Reverses the bytes of each word of four.
fn swap_words<const N: usize>(bytes: &mut [u8; N]) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
}

pub(super) struct Xtea(xtea::Xtea);

impl KeySizeUser for Xtea {
    type KeySize = U16;
}

impl KeyInit for Xtea {
    fn new(key: &Key<Self>) -> Self {
        let mut key = Zeroizing::new((*key).into());
        swap_words::<16>(&mut key);
        let key = Zeroizing::new(Key::<Self>::from(*key));
        Self(xtea::Xtea::new(&key))
    }
}

impl BlockSizeUser for Xtea {
    type BlockSize = U8;
}

impl ParBlocksSizeUser for Xtea {
    type ParBlocksSize = U1;
}

impl BlockCipherEncrypt for Xtea {
    fn encrypt_with_backend(&self, f: impl BlockCipherEncClosure<BlockSize = U8>) {
        f.call(self);
    }
}

impl BlockCipherEncBackend for Xtea {
    fn encrypt_block(&self, mut block: InOut<'_, '_, Block<Self>>) {
        let mut bytes = block.clone_in();
        swap_words(&mut bytes.0);
        BlockCipherEncrypt::encrypt_block(&self.0, &mut bytes);
        swap_words(&mut bytes.0);
        *block.get_out() = bytes;
    }
}
