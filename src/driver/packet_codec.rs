//! Packet codec: the stages between the state machine and the socket. A sent datagram passes FEC,
//! then the cipher; a received one passes the cipher, then FEC (as in kcp-go). `Config::overhead`
//! is the number of bytes that the stages add to a datagram.

use std::sync::Arc;
use std::time::Instant;

use crate::config::Config;
use crate::core::connection::fec::FlowTiming;
use crate::core::segment::Header;
use crate::crypto::nonce::{MIN_TAGGED_NONCE_LEN, NonceSecret, NonceSource};
use crate::crypto::{Overhead, PacketCipher};
use crate::driver::fec_sender::FecSender;
use crate::driver::send_batch::SendBatch;
use crate::fec::{self, oob};
use crate::util::Framing;
use crate::util::path::Path;

/// Why a received datagram was dropped by the cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// The checksum or tag is wrong, or the datagram is too short to have one.
    Forged,
    /// The nonce is tagged as this endpoint's own: the datagram was reflected.
    Reflected,
}

/// What is sent in addition to a datagram: parity and copies. Default: nothing.
#[derive(Debug, Default)]
pub(crate) struct SendExtras<'a> {
    /// FEC towards the destination address, and the timing of the connection; `None` without FEC.
    pub(crate) fec: Option<(&'a mut FecSender, &'a FlowTiming)>,
    /// Extra copies (kcp-go SetDUP).
    pub(crate) duplicates: u8,
    /// False until the peer's address is validated (RFC 9000 8.1): neither parity nor copies leave
    /// then.
    pub(crate) may_send_extras: bool,
}

/// What was written of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// No datagram.
    Nothing,
    /// A datagram with data that leaves for the first time: a data shard, with FEC.
    NewData,
    /// Any other datagram: it leaves without FEC header and takes no place in a group. Receivers
    /// accept both kinds side by side, as those of kcp-go do.
    Other,
    /// A repair symbol: as `Other`, and without copies, since another symbol is worth more.
    Repair,
}

/// A received datagram after decryption.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opened<'a> {
    /// The plaintext: a KCP datagram, a FEC shard or an out-of-band packet.
    pub(crate) body: &'a [u8],
    /// The nonce, unique per datagram under one key; empty without a cipher.
    pub(crate) nonce: &'a [u8],
}

/// Cipher and nonces of one endpoint. FEC encoders belong to addresses and are passed in.
#[derive(Debug)]
pub(crate) struct PacketCodec {
    /// `None` without a cipher. Boxed: the keys of the nonces take 1 KiB.
    encryption: Option<Box<Encryption>>,
    overhead: Overhead,
    sealed: u64,
}

#[derive(Debug)]
struct Encryption {
    cipher: Arc<dyn PacketCipher>,
    secret: NonceSecret,
    nonces: NonceSource,
}

impl PacketCodec {
    pub(crate) fn new(config: &Config, secret: [u8; 32]) -> Self {
        let encryption = config.cipher.packet_cipher().cloned().map(|cipher| {
            let secret = NonceSecret::new(&secret);
            let nonces = NonceSource::new(&secret, 0);
            Box::new(Encryption { cipher, secret, nonces })
        });
        Self { encryption, overhead: config.cipher.overhead(), sealed: 0 }
    }

    /// Datagrams sealed so far.
    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Appends the KCP datagram that `write` writes for `path`, its copies and, if the datagram
    /// completes a FEC group, the parity of the group. Returns the number of datagrams; 0 if
    /// `write` writes nothing.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        now: Instant,
        tx: &mut SendBatch,
        path: Path,
        mut extras: SendExtras<'_>,
        write: impl FnOnce(&mut Vec<u8>) -> Written,
    ) -> usize {
        let start = tx.begin(self.framing(extras.fec.is_some()).header_len);
        let written = write(tx.tail());
        match written {
            Written::Nothing => {
                tx.cancel(start);
                return 0;
            }
            Written::Other | Written::Repair if extras.fec.take().is_some() => {
                tx.remove(start + self.overhead.header_len, fec::HEADER_LEN);
            }
            Written::Other | Written::Repair | Written::NewData => {}
        }
        if written == Written::Repair {
            extras.duplicates = 0;
        }
        let mut due = 0;
        if let Some((fec, flow)) = &mut extras.fec {
            let shard = tx.tail().get_mut(start + self.overhead.header_len..).unwrap_or_default();
            due = fec.seal(now, flow, shard);
        }
        self.finish(tx, path, start);
        if !extras.may_send_extras {
            if let Some((fec, _)) = extras.fec {
                fec.on_parity_withheld();
            }
            return 1;
        }
        if extras.duplicates > 0 {
            // Copies are identical, as those of kcp-go: seal the datagram first.
            self.seal(tx);
            tx.duplicate(extras.duplicates);
        }
        if let Some((fec, _)) = extras.fec {
            self.append_parity(tx, path, fec, due);
        }
        1 + usize::from(extras.duplicates) + due
    }

    /// What is added to a KCP datagram, with FEC or without.
    pub(crate) fn framing(&self, with_fec: bool) -> Framing {
        let fec_head = if with_fec { fec::HEADER_LEN } else { 0 };
        let header_len = self.overhead.header_len + fec_head;
        Framing { header_len, trailer_len: self.overhead.trailer_len }
    }

    /// Takes the last `count` datagrams of the batch, all of `size` bytes, as new data shards of one
    /// group (`FecSender::run_len`), and appends the parity of the group if they complete it. Returns the
    /// number of parity packets.
    pub(crate) fn protect_run(
        &self,
        now: Instant,
        tx: &mut SendBatch,
        path: Path,
        (fec, flow): (&mut FecSender, &FlowTiming),
        (count, size): (usize, usize),
    ) -> usize {
        let (mut due, start) = (0, tx.bytes() - count * size);
        let run = tx.tail().get_mut(start..).unwrap_or_default();
        for datagram in run.chunks_exact_mut(size) {
            let end = size - self.overhead.trailer_len;
            let shard = datagram.get_mut(self.overhead.header_len..end).unwrap_or_default();
            due = fec.seal(now, flow, shard);
        }
        self.append_parity(tx, path, fec, due);
        due
    }

    /// Appends a segment without data for `path`, in a datagram of its own, without parity and copies.
    /// Returns the number of datagrams.
    pub(crate) fn encode_segment(
        &mut self,
        now: Instant,
        tx: &mut SendBatch,
        path: Path,
        header: &Header,
    ) -> usize {
        let write = |tail: &mut Vec<u8>| {
            header.emit(tail);
            Written::Other
        };
        self.encode(now, tx, path, SendExtras::default(), write)
    }

    fn append_parity(&self, tx: &mut SendBatch, path: Path, fec: &mut FecSender, count: usize) {
        let mut bytes = 0;
        for index in 0..count {
            let start = tx.begin(self.overhead.header_len);
            let before = tx.tail().len();
            fec.encoder().emit_parity(index, tx.tail());
            bytes += tx.tail().len() - before;
            self.finish(tx, path, start);
        }
        fec.on_parity_sent(count, bytes);
    }

    /// Appends an out-of-band packet for `path`.
    pub(crate) fn encode_out_of_band(
        &self,
        tx: &mut SendBatch,
        path: Path,
        conv: u32,
        payload: &[u8],
    ) {
        let start = tx.begin(self.overhead.header_len);
        oob::write(tx.tail(), conv, payload);
        self.finish(tx, path, start);
    }

    /// Reserves the trailer of the cipher and completes the datagram begun at `start`.
    #[inline]
    fn finish(&self, tx: &mut SendBatch, path: Path, start: usize) {
        tx.begin(self.overhead.trailer_len);
        tx.commit(path, start);
    }

    /// Seals the datagrams of the batch that are not sealed yet.
    pub(crate) fn seal(&mut self, tx: &mut SendBatch) {
        let Some(encryption) = &mut self.encryption else { return };
        tx.seal(|packets| {
            encryption.nonces.fill(self.overhead.nonce, packets);
            encryption.cipher.seal(packets);
            self.sealed += packets.len() as u64;
        });
    }

    /// Whether there is no cipher: nothing is changed and nothing added.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.encryption.is_none()
    }

    /// Whether nonces are long enough to be tagged, so that reflected datagrams are recognised.
    pub(crate) fn detects_reflection(&self) -> bool {
        self.overhead.nonce >= MIN_TAGGED_NONCE_LEN
    }

    /// Decrypts a received datagram in place.
    pub(crate) fn open<'a>(&self, datagram: &'a mut [u8]) -> Result<Opened<'a>, OpenFailure> {
        let Some(Encryption { cipher, secret, .. }) = self.encryption.as_deref() else {
            return Ok(Opened { body: datagram, nonce: &[] });
        };
        cipher.open(datagram).map_err(|_| OpenFailure::Forged)?;
        let end =
            datagram.len().checked_sub(self.overhead.trailer_len).ok_or(OpenFailure::Forged)?;
        let body = datagram.get(self.overhead.header_len..end).ok_or(OpenFailure::Forged)?;
        let nonce = datagram.get(..self.overhead.nonce).ok_or(OpenFailure::Forged)?;
        if self.detects_reflection() && secret.is_own(nonce) {
            return Err(OpenFailure::Reflected);
        }
        Ok(Opened { body, nonce })
    }
}
