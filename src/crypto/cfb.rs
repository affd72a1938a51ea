//! CFB mode (NIST SP 800-38A 6.3) with full blocks over whole packets, as kcp-go's `encrypt`: a
//! constant IV, restarted in each packet.
//!
//! The blocks of a packet form a chain when encrypted, so a single packet leaves most of the
//! processor idle. Packets of a batch are therefore encrypted interleaved, one block of each in
//! turn, which is 6 times as fast (docs/lab.md). Decryption has no such chain and processes
//! blocks in the backend's width.
//!
//! Both run as a closure inside the backend that the cipher selected for this processor: the
//! compiler uses its instructions there, and round keys are loaded once per batch.

use std::array;

use cipher::array::{Array, ArraySize};
use cipher::common::{BlockSizeUser, ParBlocks, typenum::Unsigned};
use cipher::{BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, KeyInit};
use zeroize::Zeroize;

use super::frame::Transform;

/// kcp-go's `initialVector`; ciphers of smaller blocks use its first bytes.
const IV: [u8; 16] = [
    0xa7, 0x73, 0x4f, 0x9c, 0x12, 0xac, 0x1b, 0x01, 0xa4, 0x15, 0xf2, 0xc1, 0xfc, 0x78, 0xe6, 0x6b,
];

/// Packets interleaved in a batch too small for all lanes.
const FEW_LANES: usize = 4;

/// Bytes decrypted at once: the width of the widest backend.
const STRIDE: usize = 1_024;

/// CFB with the block cipher `C`, up to `LANES` packets interleaved.
struct Cfb<C: BlockSizeUser, const LANES: usize> {
    cipher: C,
    /// The encrypted IV: key stream of each packet's first block.
    first: Array<u8, C::BlockSize>,
}

/// CFB with a block cipher and a key; `None` if the key has the wrong length.
pub(super) fn new<C, const LANES: usize>(key: &[u8]) -> Option<Box<dyn Transform>>
where
    C: BlockCipherEncrypt + KeyInit + Send + Sync + 'static,
{
    Some(Box::new(Cfb::<C, LANES>::new(C::new_from_slice(key).ok()?)))
}

impl<C: BlockCipherEncrypt, const LANES: usize> Cfb<C, LANES> {
    fn new(cipher: C) -> Self {
        let mut first: Array<u8, C::BlockSize> = Array::default();
        first.iter_mut().zip(IV).for_each(|(to, from)| *to = from);
        cipher.encrypt_block(&mut first);
        Self { cipher, first }
    }
}

impl<C, const LANES: usize> Transform for Cfb<C, LANES>
where
    C: BlockCipherEncrypt + Send + Sync,
{
    fn encrypt(&self, packets: &mut [&mut [u8]]) {
        let first = &self.first;
        self.cipher.encrypt_with_backend(Encrypt::<'_, '_, _, LANES> { first, packets });
    }

    fn decrypt(&self, packet: &mut [u8]) {
        self.cipher.encrypt_with_backend(Decrypt { first: &self.first, packet });
    }
}

impl<C: BlockSizeUser, const LANES: usize> Drop for Cfb<C, LANES> {
    fn drop(&mut self) {
        self.first.as_mut_slice().zeroize();
    }
}

struct Encrypt<'a, 'p, N: ArraySize, const LANES: usize> {
    first: &'a Array<u8, N>,
    packets: &'a mut [&'p mut [u8]],
}

impl<N: ArraySize, const LANES: usize> BlockSizeUser for Encrypt<'_, '_, N, LANES> {
    type BlockSize = N;
}

impl<N: ArraySize, const LANES: usize> BlockCipherEncClosure for Encrypt<'_, '_, N, LANES> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        for group in self.packets.chunks_mut(LANES) {
            if group.len() > FEW_LANES {
                encrypt_interleaved::<B, LANES>(backend, self.first, group);
            } else {
                encrypt_interleaved::<B, FEW_LANES>(backend, self.first, group);
            }
        }
    }
}

/// Encrypts at most `LANES` packets of any lengths.
#[inline(always)]
fn encrypt_interleaved<B: BlockCipherEncBackend, const LANES: usize>(
    backend: &B,
    first: &Array<u8, B::BlockSize>,
    packets: &mut [&mut [u8]],
) {
    let shared = packets.iter().map(|p| p.len() / B::BlockSize::USIZE).min().unwrap_or(0);
    let longest = packets.iter().map(|p| p.len() / B::BlockSize::USIZE).max().unwrap_or(0);
    let mut packets = packets.iter_mut();
    let mut lanes: [_; LANES] = array::from_fn(|_| {
        let packet = packets.next().map(|packet| &mut **packet).unwrap_or_default();
        Array::<u8, B::BlockSize>::slice_as_chunks_mut(packet)
    });
    // The key stream of each lane's next block.
    let mut keys: [Array<u8, B::BlockSize>; LANES] = array::from_fn(|_| first.clone());

    // If the backend is faster on several blocks and the lanes fill them, use that while every
    // packet has another block.
    let mut at = 0;
    if (2..=LANES).contains(&B::ParBlocksSize::USIZE) {
        while at < shared {
            for ((blocks, _), key) in lanes.iter_mut().zip(&mut keys) {
                let Some(block) = blocks.get_mut(at) else { continue };
                xor(block, key);
                key.clone_from(block);
            }
            let (groups, rest) = Array::slice_as_chunks_mut(&mut keys);
            groups.iter_mut().for_each(|group| backend.encrypt_par_blocks_inplace(group));
            rest.iter_mut().for_each(|key| backend.encrypt_block_inplace(key));
            at += 1;
        }
    }
    while at < longest {
        for ((blocks, _), key) in lanes.iter_mut().zip(&mut keys) {
            let Some(block) = blocks.get_mut(at) else { continue };
            xor(block, key);
            key.clone_from(block);
            backend.encrypt_block_inplace(key);
        }
        at += 1;
    }
    for ((_, tail), key) in lanes.iter_mut().zip(&keys) {
        xor(tail, key);
    }
}

struct Decrypt<'a, N: ArraySize> {
    first: &'a Array<u8, N>,
    packet: &'a mut [u8],
}

impl<N: ArraySize> BlockSizeUser for Decrypt<'_, N> {
    type BlockSize = N;
}

impl<N: ArraySize> BlockCipherEncClosure for Decrypt<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = N>>(self, backend: &B) {
        let mut space = [0; STRIDE];
        // Key stream of a stride's first block; `keys` has it for the blocks after.
        let mut key = self.first.clone();
        let (keys, _) = Array::slice_as_chunks_mut(&mut space);
        for stride in self.packet.chunks_mut(STRIDE) {
            let (blocks, _) = Array::slice_as_chunks(stride);
            encrypt_into(backend, blocks, keys);
            let count = blocks.len();
            let (head, rest) = stride.split_at_mut(B::BlockSize::USIZE.min(stride.len()));
            xor(head, &key);
            xor(rest, Array::slice_as_flattened(keys));
            if let Some(last) = count.checked_sub(1).and_then(|last| keys.get(last)) {
                key.clone_from(last);
            }
        }
    }
}

/// Encrypts `blocks` into the first of `keys`, which is at least as long.
#[inline(always)]
fn encrypt_into<B: BlockCipherEncBackend>(
    backend: &B,
    blocks: &[Array<u8, B::BlockSize>],
    keys: &mut [Array<u8, B::BlockSize>],
) {
    let (groups, blocks) = ParBlocks::<B>::slice_as_chunks(blocks);
    let (key_groups, keys) = ParBlocks::<B>::slice_as_chunks_mut(keys);
    let mut key_groups = key_groups.iter_mut();
    for (group, keys) in groups.iter().zip(&mut key_groups) {
        backend.encrypt_par_blocks((group, keys).into());
    }
    match key_groups.next() {
        // A whole group is as costly as half of its blocks one by one.
        Some(keys) if 2 * blocks.len() > keys.len() => {
            keys.iter_mut().zip(blocks).for_each(|(key, block)| key.clone_from(block));
            backend.encrypt_par_blocks_inplace(keys);
        }
        keys_left => {
            let keys = keys_left.map_or(keys, |group| group.as_mut_slice());
            for (key, block) in keys.iter_mut().zip(blocks) {
                backend.encrypt_block((block, key).into());
            }
        }
    }
}

#[inline(always)]
fn xor(bytes: &mut [u8], key: &[u8]) {
    for (byte, key) in bytes.iter_mut().zip(key) {
        *byte ^= key;
    }
}
