//! The output of a driver: the batch of a turn, and the stages between the state machine and the socket.
//!
//! A sent datagram passes FEC, then the cipher; a received one passes the cipher, then FEC (as in kcp-go).
//! `Config::overhead` is the number of bytes that the stages add to a datagram.

pub(crate) mod send_batch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::core::connection::Kcp;
use crate::core::connection::fec::FlowTiming;
use crate::core::segment::Header;
use crate::crypto::nonce::{MIN_TAGGED_NONCE_LEN, NonceSecret, NonceSource};
use crate::crypto::{Overhead, PacketCipher};
use crate::driver::fec::FecSender;
use crate::driver::output::send_batch::{Flushed, SendBatch};
use crate::fec::{self, oob};
use crate::shared::requests::RequestQueue;
use crate::stats::EndpointStats;
use crate::sys::Socket;
use crate::util::Framing;
use crate::util::path::Path;

/// Datagrams sent per turn, duplicates and parity included: six GSO batches of 46 datagrams. A batch has at
/// most 65,000 bytes (`send_batch`), which is 46 datagrams of the default 1,400 bytes. Not to be confused
/// with `MAX_FULL_DATAGRAMS_BEFORE_ACK` of `core`: 44, for 1,472-byte datagrams.
pub(super) const TURN_PACKETS: usize = 276;
/// Datagrams per turn that answer a received one at once, before the ready connections are served: three GSO
/// batches, half of what a turn may send.
const TURN_ANSWERS: usize = 138;
/// Most raw datagrams that leave per turn.
const TURN_RAW: usize = 64;

/// The longest wait for a reader that counts as short.
const MAX_SHORT_WAIT: Duration = Duration::from_micros(500);
/// Short waits in a row after which ACKs are delayed.
pub(super) const SHORT_WAITS: u8 = 16;

/// The sending side of a socket.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) tx: SendBatch,
    pub(super) codec: PacketCodec,
    pub(super) ack_delay: AckDelay,
    /// Datagrams that may still be sent in this turn.
    pub(super) budget: usize,
    /// True from a send that would block until a flush succeeds.
    pub(super) blocked: bool,
    /// True while datagrams of `Endpoint::send_raw` wait that did not leave in the last turn.
    pub(super) raw_pending: bool,
    /// Connections with segments in flight that are larger than the path MTU.
    pub(super) oversized_connections: usize,
    /// True while the socket permits IP fragmentation, which oversized segments in flight need.
    ip_fragmentation: bool,
}

impl Output {
    pub(super) fn new(codec: PacketCodec) -> Self {
        Self {
            tx: SendBatch::default(),
            codec,
            ack_delay: AckDelay::default(),
            budget: 0,
            blocked: false,
            raw_pending: false,
            oversized_connections: 0,
            ip_fragmentation: false,
        }
    }

    pub(super) fn begin_turn(&mut self, now: Instant) {
        self.refill();
        self.ack_delay.on_turn(now);
    }

    /// Sets the budget of a whole turn.
    pub(super) fn refill(&mut self) {
        self.budget = TURN_PACKETS;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tx.is_empty() && !self.raw_pending
    }

    /// `count` datagrams of this turn are written.
    pub(super) fn spend(&mut self, count: usize) {
        self.budget = self.budget.saturating_sub(count);
    }

    /// The writer for the datagrams of a connection. `fec`: FEC towards its peer.
    pub(super) fn writer<'a>(&'a mut self, fec: Option<&'a mut FecSender>) -> PacketWriter<'a> {
        PacketWriter { tx: &mut self.tx, codec: &mut self.codec, fec }
    }

    /// Whether another answer may leave at once in this turn.
    pub(super) fn may_answer(&self) -> bool {
        !self.blocked && !self.tx.is_full() && self.budget > TURN_PACKETS - TURN_ANSWERS
    }

    /// Sends the segment without data that `segment` returns, if this turn may send another answer: on
    /// `path`, in a datagram of its own, without parity and copies.
    pub(super) fn send_at_once(
        &mut self,
        now: Instant,
        path: Path,
        segment: impl FnOnce() -> Option<Header>,
    ) {
        if !self.may_answer() {
            return;
        }
        let Some(header) = segment() else { return };
        let sent = self.codec.encode_segment(now, &mut self.tx, path, &header);
        self.spend(sent);
    }

    /// Appends raw datagrams (`Endpoint::send_raw`) to the batch, without FEC and cipher. The excess over
    /// [`TURN_RAW`] or the batch waits for the next turn.
    pub(super) fn send_raw(&mut self, requests: &RequestQueue, stats: &mut EndpointStats) {
        let (mut waiting, dropped) = requests.raw();
        stats.raw.dropped = dropped;
        let mut quota = TURN_RAW;
        while waiting && quota > 0 && !self.blocked && !self.tx.is_full() {
            let Some((peer, datagram)) = requests.next_raw() else { break };
            quota -= 1;
            self.codec.seal(&mut self.tx);
            self.tx.push_sealed(Path::to(peer), &datagram);
            stats.raw.sent += 1;
            self.spend(1);
            waiting = requests.raw().0;
        }
        self.raw_pending = waiting;
    }

    /// Seals and sends the batch, which is not empty.
    pub(super) fn flush(&mut self, socket: &mut impl Socket, stats: &mut EndpointStats) -> Flushed {
        let permit = self.oversized_connections > 0;
        if permit != self.ip_fragmentation {
            socket.set_ip_fragmentation(permit);
            self.ip_fragmentation = permit;
        }
        self.codec.seal(&mut self.tx);
        let flushed = self.tx.flush(socket, stats);
        self.blocked = matches!(flushed, Flushed::Blocked);
        flushed
    }

    /// Another socket replaces the current one.
    pub(super) fn on_rebound(&mut self) {
        self.ip_fragmentation = false;
    }

    /// Discards the batch, which may be sealed in part.
    pub(super) fn discard(&mut self) {
        (self.tx, self.blocked) = (SendBatch::default(), false);
    }
}

/// Whether ACKs may wait for the answers of readers (RFC 9293 3.8.6.3).
///
/// The turn after one that woke a reader comes once the tasks that were ready have run. If a reader answers
/// at once, one datagram carries answer and ACK. If it computes, the peer would measure the work as
/// round-trip time and retransmit. A wait cannot be cut short, since on a runtime with one thread nothing
/// else runs. So each wait is measured, and ACKs are delayed only after a number of short waits in a row.
#[derive(Debug, Default)]
pub(super) struct AckDelay {
    /// The turn that woke a reader, until the next one.
    since: Option<Instant>,
    /// Short waits since the last long one, at most [`SHORT_WAITS`].
    short_waits: u8,
}

impl AckDelay {
    fn on_turn(&mut self, now: Instant) {
        let Some(since) = self.since.take() else { return };
        let is_short = now.saturating_duration_since(since) <= MAX_SHORT_WAIT;
        self.short_waits = if is_short { (self.short_waits + 1).min(SHORT_WAITS) } else { 0 };
    }

    /// A reader was woken and its answer could carry an ACK. Returns whether the ACK may wait.
    pub(super) fn on_reader_woken(&mut self, now: Instant) -> bool {
        self.since = Some(now);
        self.short_waits == SHORT_WAITS
    }

    /// Whether a wait has begun.
    pub(super) fn awaits_readers(&self) -> bool {
        self.since.is_some()
    }
}

/// Why a received datagram was dropped by the cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFailure {
    /// The checksum or tag is wrong, or the datagram is too short to have one.
    Forged,
    /// The nonce is tagged as this endpoint's own: the datagram was reflected.
    Reflected,
}

/// Additions to a sent datagram: parity and copies. Default: none.
#[derive(Debug, Default)]
pub(crate) struct SendExtras<'a> {
    /// FEC towards the destination address, and the timing of the connection; `None` without FEC.
    pub(crate) fec: Option<(&'a mut FecSender, &'a FlowTiming)>,
    /// Extra copies (kcp-go SetDUP).
    pub(crate) duplicates: u8,
    /// False until the peer's address is validated (RFC 9000 8.1): then neither parity nor copies leave.
    pub(crate) may_send_extras: bool,
}

/// The kind of datagram that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// No datagram.
    Nothing,
    /// New data: a data shard, with FEC.
    NewData,
    /// Any other datagram: it leaves without FEC header and takes no place in a group. Receivers accept both
    /// kinds side by side, as kcp-go's do.
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

    pub(crate) fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Appends the KCP datagram that `write` writes for `path`, its copies, and the parity of the FEC group
    /// that it completes. Returns the number of datagrams; 0 if `write` writes nothing.
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
            // Copies are identical, as in kcp-go: seal the datagram first.
            self.seal(tx);
            tx.duplicate(extras.duplicates);
        }
        if let Some((fec, _)) = extras.fec {
            self.append_parity(tx, path, fec, due);
        }
        1 + usize::from(extras.duplicates) + due
    }

    /// The bytes around a KCP datagram, with FEC or without.
    pub(crate) fn framing(&self, with_fec: bool) -> Framing {
        let fec_head = if with_fec { fec::HEADER_LEN } else { 0 };
        let header_len = self.overhead.header_len + fec_head;
        Framing { header_len, trailer_len: self.overhead.trailer_len }
    }

    /// Takes the datagrams `run` of the batch as new data shards of one group (`FecSender::run_len`), and
    /// appends the parity of the group if they complete it. Returns the number of parity packets.
    pub(crate) fn protect_run(
        &self,
        now: Instant,
        tx: &mut SendBatch,
        run: Run,
        fec: &mut FecSender,
        flow: &FlowTiming,
    ) -> usize {
        let (mut due, start) = (0, tx.bytes() - run.count * run.size);
        let shards = tx.tail().get_mut(start..).unwrap_or_default();
        for datagram in shards.chunks_exact_mut(run.size) {
            let end = run.size - self.overhead.trailer_len;
            let shard = datagram.get_mut(self.overhead.header_len..end).unwrap_or_default();
            due = fec.seal(now, flow, shard);
        }
        self.append_parity(tx, run.path, fec, due);
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

    /// Length of the UDP datagram around `len` bytes.
    #[inline]
    pub(crate) fn sealed_len(&self, len: usize) -> usize {
        self.overhead.header_len + len + self.overhead.trailer_len
    }

    /// Whether there is no cipher, so that opening changes nothing.
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

/// The last datagrams of the batch, all on one path and of equal length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) path: Path,
    pub(crate) count: usize,
    /// Bytes of each, with what the stages add.
    pub(crate) size: usize,
}

/// Writes the datagrams of one connection, borrowed while it transmits.
#[derive(Debug)]
pub(crate) struct PacketWriter<'a> {
    pub(crate) tx: &'a mut SendBatch,
    pub(crate) codec: &'a mut PacketCodec,
    /// FEC towards the destination address, if it is on. All connections to the address share it, since
    /// parity carries no conversation id.
    pub(crate) fec: Option<&'a mut FecSender>,
}

/// Copies of the datagrams of [`PacketWriter::transmit`].
#[derive(Debug, Default)]
pub(crate) struct Copies<'a> {
    /// On the same path (kcp-go SetDUP).
    pub(crate) duplicates: u8,
    /// On other paths; `None` without further paths.
    pub(crate) on_paths: Option<&'a mut PathCopies>,
}

/// Other paths on which datagrams with data leave too.
#[derive(Debug, Default)]
pub(crate) struct PathCopies {
    /// Each with its largest KCP datagram, bytes.
    pub(crate) paths: Vec<(Path, usize)>,
    /// The latest datagram.
    datagram: Vec<u8>,
}

/// Datagrams that [`PacketWriter::transmit`] appended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Appended {
    /// Their number, copies and parity included; 0 if nothing may leave now.
    pub(crate) datagrams: usize,
    /// The next one may belong to the same GSO batch.
    pub(crate) in_gso_batch: bool,
    /// The stream has nothing else to send now.
    pub(crate) is_last: bool,
}

impl PacketWriter<'_> {
    /// Appends the next datagram of `kcp`, with its copies and the parity that it completes.
    ///
    /// `in_gso_batch`: [`Appended::in_gso_batch`] of the datagram before, if nothing else left after it. Up
    /// to `max` datagrams of the GSO batch are then appended at once, unless each has copies.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        kcp: &mut Kcp,
        path: Path,
        copies: Copies<'_>,
        mut in_gso_batch: bool,
        max: usize,
    ) -> Appended {
        let Copies { duplicates, on_paths } = copies;
        let may_send_extras = kcp.send_budget().may_send_extras();
        self.update_fec(kcp);
        let mut copies = on_paths.filter(|copies| !copies.paths.is_empty());
        if in_gso_batch && duplicates == 0 && copies.is_none() {
            return self.transmit_run(now, kcp, path, max);
        }
        let flow = if self.fec.is_some() { kcp.flow_timing() } else { FlowTiming::default() };
        let before = self.tx.bytes();
        let (mut len, mut is_last) = (0, false);
        let write = |tail: &mut Vec<u8>| {
            let (mut new_segments, mut is_repair) = (1, false);
            let (start, mut has_data) = (tail.len(), true);
            if in_gso_batch {
                let size = kcp.current_mtu();
                len = size * kcp.poll_transmit_more(1, Framing::default(), tail);
            } else if let Some(sent) = kcp.poll_transmit(now, tail) {
                (len, in_gso_batch, is_last) = (sent.len, sent.gso_follows, sent.is_last);
                (new_segments, is_repair) = (sent.new_segments, sent.is_repair);
                has_data = sent.segments > 0;
            }
            if let Some(copies) = &mut copies {
                copies.datagram.clear();
                let written = tail.get(start..).filter(|_| has_data);
                copies.datagram.extend_from_slice(written.unwrap_or_default());
            }
            match len {
                0 => Written::Nothing,
                _ if is_repair => Written::Repair,
                _ if new_segments > 0 => Written::NewData,
                _ => Written::Other,
            }
        };
        let fec = self.fec.as_deref_mut().map(|fec| (fec, &flow));
        let extras = SendExtras { fec, duplicates, may_send_extras };
        let mut datagrams = self.codec.encode(now, self.tx, path, extras, write);
        if let Some(copies) = copies.filter(|copies| !copies.datagram.is_empty()) {
            for (path, mtu) in &copies.paths {
                if copies.datagram.len() > *mtu {
                    continue;
                }
                let write = |tail: &mut Vec<u8>| {
                    tail.extend_from_slice(&copies.datagram);
                    Written::Other
                };
                datagrams += self.codec.encode(now, self.tx, *path, SendExtras::default(), write);
            }
        }
        if datagrams > 0 {
            kcp.on_out_of_band_sent(now, self.tx.bytes() - before - len);
            in_gso_batch &= !self.report_closed_group(now, kcp);
        }
        Appended { datagrams, in_gso_batch, is_last }
    }

    /// Appends up to `max` further datagrams of a GSO batch, all of equal length, and the parity that they
    /// complete.
    fn transmit_run(&mut self, now: Instant, kcp: &mut Kcp, path: Path, max: usize) -> Appended {
        let (framing, before) = (self.codec.framing(self.fec.is_some()), self.tx.bytes());
        let (mtu, flow) = (kcp.current_mtu(), self.fec.is_some().then(|| kcp.flow_timing()));
        let size = framing.around(mtu);
        let mut max = max.min(self.tx.capacity_left(size));
        if size > mtu && kcp.is_rate_limited() {
            // The bytes around a datagram are charged before the next one may leave.
            max = max.min(1);
        }
        if let Some(fec) = &self.fec {
            max = max.min(fec.run_len());
        }
        let write = |tail: &mut Vec<u8>| kcp.poll_transmit_more(max, framing, tail);
        let count = self.tx.append_equal(path, write);
        let mut appended = Appended { datagrams: count, in_gso_batch: true, is_last: false };
        if count == 0 || size == mtu {
            return appended;
        }
        if let (Some(fec), Some(flow)) = (self.fec.as_deref_mut(), &flow) {
            let run = Run { path, count, size };
            appended.datagrams += self.codec.protect_run(now, self.tx, run, fec, flow);
        }
        kcp.on_out_of_band_sent(now, self.tx.bytes() - before - count * mtu);
        appended.in_gso_batch = !self.report_closed_group(now, kcp);
        appended
    }

    /// Sends without FEC to a peer that takes repair symbols instead.
    fn update_fec(&mut self, kcp: &mut Kcp) {
        let Some(_) = &self.fec else { return };
        let used = kcp.uses_fec();
        kcp.set_fec_used(used);
        if !used {
            self.fec = None;
        }
    }

    /// Closes the FEC group if it is due and the batch has space left: appends fillers and parity.
    /// Returns the number of datagrams.
    pub(crate) fn close_group(&mut self, now: Instant, kcp: &mut Kcp, path: Path) -> usize {
        if self.tx.is_full() {
            return 0;
        }
        let conv = kcp.conv();
        let due = |fec: &&mut FecSender| fec.deadline(conv).is_some_and(|at| at <= now);
        let Some(fec) = self.fec.as_deref_mut().filter(due) else { return 0 };
        let (flow, before) = (kcp.flow_timing(), self.tx.bytes());
        let may_fill = kcp.may_fill_fec_group(now);
        let Some(closing) = fec.begin_closing(now, &flow, may_fill) else { return 0 };
        let (mut datagrams, mut written) = (0, 0);
        for _ in 0..closing.fillers {
            let write = |tail: &mut Vec<u8>| {
                written += kcp.write_fec_filler(now, tail);
                Written::NewData
            };
            let fec = self.fec.as_deref_mut().map(|fec| (fec, &flow));
            let extras = SendExtras { fec, duplicates: 0, may_send_extras: true };
            datagrams += self.codec.encode(now, self.tx, path, extras, write);
        }
        kcp.on_out_of_band_sent(now, self.tx.bytes() - before - written);
        self.report_closed_group(now, kcp);
        datagrams
    }

    /// Tells loss detection of the group whose parity has just left. Returns whether there was one: a later
    /// segment may count as lost now, and would leave before the rest of a GSO batch.
    fn report_closed_group(&mut self, now: Instant, kcp: &mut Kcp) -> bool {
        let Some(fec) = self.fec.as_deref_mut() else { return false };
        let (packets, bytes) = fec.take_parity_sent();
        kcp.on_parity_sent(packets, bytes);
        let closed = fec.take_closed().filter(|group| group.conv == kcp.conv());
        if let Some(group) = &closed {
            kcp.on_fec_group_closed(now, group);
        }
        closed.is_some()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, KcpConfig};
    use crate::core::connection::Seed;
    use crate::fec::FecConfig;

    #[test]
    fn group_is_not_closed_while_the_batch_is_full() {
        let path = Path::to(SocketAddr::from(([127, 0, 0, 1], 1)));
        let start = Instant::now();
        let mut kcp = Kcp::with_config(1, &KcpConfig::default(), start, Seed::default()).unwrap();
        let (mut tx, mut codec) = (SendBatch::default(), PacketCodec::new(&Config::new(), [0; 32]));
        let mut fec = FecSender::learned(FecConfig::new(5, 2).unwrap());
        for _ in 0..4 {
            fec.seal(start, &kcp.flow_timing(), &mut [0; 1_000]);
        }
        let now = start + Duration::from_millis(30);
        while !tx.is_full() {
            tx.push_sealed(path, &[0; 1_400]);
        }
        let mut full = PacketWriter { tx: &mut tx, codec: &mut codec, fec: Some(&mut fec) };
        assert_eq!(full.close_group(now, &mut kcp, path), 0);
        let mut tx = SendBatch::default();
        let mut next = PacketWriter { tx: &mut tx, codec: &mut codec, fec: Some(&mut fec) };
        assert_eq!(next.close_group(now, &mut kcp, path), 2, "a filler and a parity packet");
    }
}
