//! The stages between the state machine and the socket, in one place: out goes FEC and then the
//! cipher, in comes the cipher and then FEC. What they leave of a datagram is computed in
//! `config.rs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::config::Config;
use crate::crypto::nonce::{MIN_TAGGED_NONCE_LEN, NonceSecret, NonceSource};
use crate::crypto::{Overhead, PacketCipher};
use crate::driver::send_batch::SendBatch;
use crate::fec::{self, FecEncoder, oob};

/// Why a datagram was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// Its checksum or tag is wrong, or it is too short to have one.
    Forged,
    /// This endpoint sealed it.
    Reflected,
}

/// What is sent beside a datagram.
#[derive(Debug)]
pub(crate) struct SendExtras<'a> {
    /// Of the address it goes to.
    pub(crate) fec: Option<&'a mut FecEncoder>,
    pub(crate) copies: u8,
    /// Whether anything beside the datagram itself may leave: not to a stranger.
    pub(crate) may_repeat: bool,
}

/// A datagram that was opened.
#[derive(Debug)]
pub(crate) struct Opened<'a> {
    /// What was sealed: a KCP datagram, a shard or an out-of-band packet.
    pub(crate) body: &'a [u8],
    /// What the sender gave no other datagram under this key; empty without a cipher.
    pub(crate) nonce: &'a [u8],
}

/// The stages of one endpoint. What belongs to one address, its FEC state, is lent.
#[derive(Debug)]
pub(crate) struct PacketCodec {
    cipher: Option<Arc<dyn PacketCipher>>,
    overhead: Overhead,
    secret: NonceSecret,
    nonces: NonceSource,
    sealed: u64,
}

impl PacketCodec {
    pub(crate) fn new(config: &Config, secret: [u8; 32]) -> Self {
        let secret = NonceSecret::new(&secret);
        Self {
            cipher: config.cipher.packet_cipher().cloned(),
            overhead: config.cipher.overhead(),
            nonces: NonceSource::new(&secret, 0),
            secret,
            sealed: 0,
        }
    }

    /// Datagrams sealed so far.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Appends the KCP datagram that `write` appends for `dst`, copies of it and, when a group is
    /// full, its parity. Returns the number of datagrams; none unless `write` has written one.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        now: Instant,
        tx: &mut SendBatch,
        dst: SocketAddr,
        mut extra: SendExtras<'_>,
        write: impl FnOnce(&mut Vec<u8>) -> bool,
    ) -> usize {
        let fec_head = if extra.fec.is_some() { fec::HEADER_LEN } else { 0 };
        let start = tx.begin(self.overhead.header_len + fec_head);
        if !write(tx.tail()) {
            tx.cancel(start);
            return 0;
        }
        let mut due = 0;
        if let Some(encoder) = &mut extra.fec {
            let shard = tx.tail().get_mut(start + self.overhead.header_len..).unwrap_or_default();
            due = encoder.seal(now, shard);
        }
        self.finish(tx, dst, start);
        if !extra.may_repeat {
            return 1;
        }
        if extra.copies > 0 {
            // Copies are the same bytes, so they are made of what is sealed.
            self.seal(tx);
            tx.repeat(extra.copies);
        }
        if let Some(encoder) = extra.fec {
            for index in 0..due {
                let start = tx.begin(self.overhead.header_len);
                encoder.emit_parity(index, tx.tail());
                self.finish(tx, dst, start);
            }
        }
        1 + usize::from(extra.copies) + due
    }

    /// Appends an out-of-band packet for `dst`.
    pub(crate) fn encode_out_of_band(
        &self,
        tx: &mut SendBatch,
        dst: SocketAddr,
        conv: u32,
        payload: &[u8],
    ) {
        let start = tx.begin(self.overhead.header_len);
        oob::write(tx.tail(), conv, payload);
        self.finish(tx, dst, start);
    }

    #[inline]
    fn finish(&self, tx: &mut SendBatch, dst: SocketAddr, start: usize) {
        tx.begin(self.overhead.trailer_len);
        tx.commit(dst, start);
    }

    /// Seals whatever the batch holds unsealed.
    pub(crate) fn seal(&mut self, tx: &mut SendBatch) {
        let Some(cipher) = &self.cipher else { return };
        tx.seal(|packets| {
            self.nonces.fill(self.overhead.nonce, packets);
            cipher.seal(packets);
            self.sealed += packets.len() as u64;
        });
    }

    /// Whether what this endpoint sealed is recognised when it comes back.
    pub(crate) fn detects_reflection(&self) -> bool {
        self.overhead.nonce >= MIN_TAGGED_NONCE_LEN
    }

    /// Opens a datagram in place.
    pub(crate) fn open<'a>(&self, datagram: &'a mut [u8]) -> Result<Opened<'a>, OpenFailure> {
        let Some(cipher) = &self.cipher else {
            return Ok(Opened { body: datagram, nonce: &[] });
        };
        cipher.open(datagram).map_err(|_| OpenFailure::Forged)?;
        let end =
            datagram.len().checked_sub(self.overhead.trailer_len).ok_or(OpenFailure::Forged)?;
        let body = datagram.get(self.overhead.header_len..end).ok_or(OpenFailure::Forged)?;
        let nonce = datagram.get(..self.overhead.nonce).ok_or(OpenFailure::Forged)?;
        if self.detects_reflection() && self.secret.is_own(nonce) {
            return Err(OpenFailure::Reflected);
        }
        Ok(Opened { body, nonce })
    }
}
