//! The bytes that the ends of streams wrote and read, and whether their situation allows the errors they saw.

use std::io;

use super::kinds::Kind;
use super::plan::{HARMLESS_OUTAGE, Plan};
use crate::config::Migration;
use crate::driver::tests::fixtures::{SERVER, cause};
use crate::error::{ConnectionError, TimeoutCause};
use crate::stats::ConnectionStats;

/// Bytes in front of a stream that name the end that wrote it.
pub(super) const NAME: u64 = 8;
/// So that no datagram of a third party is a name.
const MAGIC: u64 = 0x6B63_7078_0000_0000;

/// One end of a stream.
#[derive(Clone, Debug)]
pub(super) struct End {
    host: u8,
    /// The process of the host, counted from its first start.
    process: u32,
    /// When a client began to connect, or a server accepted, in microseconds.
    since: u64,
    written: u64,
    /// The application ended its side: the peer may read the end of the stream.
    closed: bool,
    /// `shutdown` promised that the peer has every byte.
    delivered: bool,
    /// Datagrams beside the stream.
    datagrams: u64,
    read: u64,
    /// The end that wrote what this end reads.
    peer: Option<usize>,
    name: Vec<u8>,
    at_end: bool,
    /// The application dropped or aborted its reader early: the peer may be reset.
    gives_up: bool,
    /// Halves in use.
    halves: u8,
    pub(super) error: Option<ConnectionError>,
}

/// Faults of a host so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// Number of the running process.
    pub(super) process: u32,
    /// When the process after the last one that crashed or ended began, in microseconds.
    pub(super) lost_until: Option<u64>,
    /// The sum of the times without contact.
    pub(super) outage: u64,
    /// It has another address.
    pub(super) has_moved: bool,
}

#[derive(Debug)]
pub(super) struct Ledger {
    plan: Plan,
    pub(super) ends: Vec<End>,
    facts: Vec<Facts>,
    /// The listener accepts no more.
    pub(super) drains: bool,
    /// It has ended the write sides of its connections.
    hands_over: bool,
    pub(super) errors: usize,
}

impl Ledger {
    pub(super) fn new(plan: Plan) -> Self {
        Self {
            plan,
            ends: Vec::new(),
            facts: vec![Facts::default(); 256],
            drains: false,
            hands_over: false,
            errors: 0,
        }
    }

    pub(super) fn facts(&mut self, host: u8) -> &mut Facts {
        &mut self.facts[usize::from(host)]
    }

    /// A new end of `host`, with a reader and a writer.
    pub(super) fn open(&mut self, host: u8, since: u64) -> usize {
        self.ends.push(End {
            host,
            process: self.facts[usize::from(host)].process,
            since,
            written: 0,
            closed: false,
            delivered: false,
            datagrams: 0,
            read: 0,
            peer: None,
            name: Vec::new(),
            at_end: false,
            gives_up: false,
            halves: 2,
            error: None,
        });
        self.ends.len() - 1
    }

    /// The next `len` bytes that `end` writes.
    pub(super) fn content(&self, end: usize, len: u64) -> Vec<u8> {
        let from = self.ends[end].written;
        (from..from + len).map(|at| byte(end, at)).collect()
    }

    pub(super) fn on_written(&mut self, end: usize, len: usize) {
        assert!(len > 0, "a write of nothing");
        self.ends[end].written += len as u64;
    }

    pub(super) fn on_close(&mut self, end: usize) {
        self.ends[end].closed = true;
    }

    /// `shutdown` was successful: the peer has every byte, or waits for this side to read.
    pub(super) fn on_shut_down(&mut self, end: usize, stats: &ConnectionStats) {
        let me = &mut self.ends[end];
        me.delivered = stats.unsent_bytes == 0 && stats.path.in_flight_segments == 0;
        let sent = stats.sent.payload_bytes;
        assert!(!me.delivered || sent == me.written, "end {end} has sent {sent} bytes: {me:?}");
    }

    /// The next datagram beside the stream, with `padding`.
    pub(super) fn datagram(&self, end: usize, padding: usize) -> Vec<u8> {
        let count = self.ends[end].datagrams;
        let mut datagram = (MAGIC ^ end as u64).to_le_bytes().to_vec();
        datagram.extend(count.to_le_bytes());
        datagram.resize(16 + padding, count as u8);
        datagram
    }

    pub(super) fn on_datagram_sent(&mut self, end: usize) {
        self.ends[end].datagrams += 1;
    }

    /// Checks a datagram beside the stream: the peer has sent it.
    pub(super) fn on_datagram(&self, end: usize, datagram: &[u8]) {
        let number = |at| u64::from_le_bytes(datagram[at..at + 8].try_into().unwrap());
        let (peer, count) = ((number(0) ^ MAGIC) as usize, number(8));
        let is_whole = datagram[16..].iter().all(|byte| *byte == count as u8);
        let is_sent = self.ends.get(peer).is_some_and(|peer| count < peer.datagrams);
        // Datagrams have no timestamp. Until the server has data of the client, the client takes datagrams of the
        // next process, too.
        let is_of_peer = self.ends[end].peer.is_none_or(|known| {
            known == peer || self.ends[known].host == SERVER && self.ends[peer].host == SERVER
        });
        assert!(
            is_whole && is_sent && (is_of_peer || self.is_mixed(end)),
            "end {end} receives {count} of end {peer}"
        );
    }

    pub(super) fn on_give_up(&mut self, end: usize) {
        self.ends[end].gives_up = true;
    }

    pub(super) fn on_half_done(&mut self, end: usize) {
        self.ends[end].halves -= 1;
    }

    /// Checks bytes that `end` has read. Returns false if a third party wrote them.
    pub(super) fn on_read(&mut self, end: usize, bytes: &[u8]) -> bool {
        let mut bytes = bytes;
        while self.ends[end].read < NAME
            && let Some((first, rest)) = bytes.split_first()
        {
            let me = &mut self.ends[end];
            me.name.push(*first);
            me.read += 1;
            bytes = rest;
            if me.read == NAME && !self.meet(end) {
                return false;
            }
        }
        let Some(peer) = self.ends[end].peer else { return true };
        if self.is_mixed(end) {
            self.on_give_up(end);
            return false;
        }
        let from = self.ends[end].read;
        for (at, got) in (from..).zip(bytes) {
            assert_eq!(*got, byte(peer, at), "end {end} reads another byte of {peer} at {at}");
        }
        let me = &mut self.ends[end];
        me.read += bytes.len() as u64;
        let (read, written) = (me.read, self.ends[peer].written);
        assert!(read <= written, "end {end} reads {read} bytes, {peer} wrote {written}");
        true
    }

    /// Whether another process of the server than the one that `end` reads from has read its stream. Or the server
    /// has two connections of `end`, and did not follow it.
    fn is_mixed(&self, end: usize) -> bool {
        let own = self.ends[end].peer;
        let mut others = self.ends.iter().enumerate();
        others.any(|(index, other)| other.peer == Some(end) && own != Some(index))
            || (!self.follows() && self.is_left_behind(end))
    }

    /// Whether the server has another connection of `end`, without data: `end` moved before its first data arrived,
    /// which opened a second one. A conversation id with two addresses is not followed to a third.
    fn is_left_behind(&self, end: usize) -> bool {
        let me = &self.ends[end];
        let is_unread = |writer: &End, other: &End| {
            let is_earlier = (me.since..writer.since).contains(&other.since);
            other.peer.is_none() && writer.host == other.host && is_earlier
        };
        let writer = me.peer.map(|peer| &self.ends[peer]);
        self.facts[usize::from(me.host)].has_moved
            && writer.is_some_and(|writer| self.ends.iter().any(|other| is_unread(writer, other)))
    }

    /// Whether connections of the server follow their peers to another address.
    fn follows(&self) -> bool {
        self.plan.server.allowed_migration() != Migration::Off
    }

    /// Learns the peer from its name.
    fn meet(&mut self, end: usize) -> bool {
        let name = u64::from_le_bytes(self.ends[end].name.clone().try_into().unwrap());
        let peer = (name ^ MAGIC) as usize;
        let Some(writer) = self.ends.get(peer).filter(|writer| writer.host != self.ends[end].host)
        else {
            assert!(
                self.plan.kinds.has(Kind::Forgery),
                "end {end} reads a stream that no end wrote"
            );
            return false;
        };
        // Another process of the server may read the same stream: it knows no initial segments. Nor is a client known
        // that moves before it is validated: its first data opens another connection, as in TCP Fast Open (RFC 7413
        // 2.1).
        let has_moved = self.facts[usize::from(writer.host)].has_moved;
        let is_twice = |other: &End| {
            other.peer == Some(peer) && other.process == self.ends[end].process && !has_moved
        };
        assert!(!self.ends.iter().any(is_twice), "end {peer} is delivered twice: {writer:?}");
        self.ends[end].peer = Some(peer);
        true
    }

    /// `end` has read the end of its stream.
    pub(super) fn on_end(&mut self, end: usize, stats: &ConnectionStats) {
        let me = &mut self.ends[end];
        me.at_end = true;
        assert_eq!(stats.received.payload_bytes, me.read, "bytes received by end {end}");
        let Some(peer) = me.peer else {
            // A connection whose `connect` was cancelled, or whose peer wrote nothing.
            assert!(me.read == 0, "end {end} reads the end within a name: {me:?}");
            return;
        };
        let (read, writer) = (me.read, &self.ends[peer]);
        assert!(
            self.is_mixed(end) || (writer.closed && read == writer.written),
            "end {end} reads the end after {read} bytes: {writer:?}"
        );
    }

    /// Checks that the situation of `end` allows an error.
    pub(super) fn on_error(&mut self, end: usize, error: &io::Error, call: &str) {
        let Some(cause) = cause(error) else {
            let is_closed = self.hands_over && self.ends[end].host == SERVER;
            assert!(
                is_closed && error.kind() == io::ErrorKind::BrokenPipe,
                "{call} of end {end} fails: {error}"
            );
            return;
        };
        self.errors += 1;
        assert!(
            self.allows(end, cause),
            "{call} of end {end} fails with {cause:?}: {}",
            self.why(&self.ends[end])
        );
        self.ends[end].error = Some(cause);
    }

    /// Checks that `connect` of a client may fail.
    pub(super) fn on_connect_error(&mut self, host: u8, error: &io::Error, since: u64) {
        self.errors += 1;
        let end = self.open(host, since);
        self.ends[end].halves = 0;
        let Some(cause) = cause(error) else {
            panic!("connect of {host} fails: {error}");
        };
        assert!(
            self.allows(end, cause),
            "connect of {host} fails with {cause:?}: {}",
            self.why(&self.ends[end])
        );
    }

    fn why(&self, end: &End) -> String {
        let peer = end.peer.map(|peer| &self.ends[peer]);
        let hosts = [end.host, peer.map_or(SERVER, |peer| peer.host)];
        let facts = hosts.map(|host| self.facts[usize::from(host)]);
        format!("{end:?}, its peer {peer:?}, facts {facts:?}, drains {}", self.drains)
    }

    fn allows(&self, index: usize, error: ConnectionError) -> bool {
        let (end, kinds) = (&self.ends[index], self.plan.kinds);
        let peer_host = end.peer.map(|peer| self.ends[peer].host);
        // A server end that has read nothing may have any client.
        let clients = (0..u8::MAX).filter(|host| match (end.host, peer_host) {
            (SERVER, Some(client)) => *host == client,
            (SERVER, None) => true,
            (client, _) => *host == client,
        });
        let involved: Vec<_> =
            clients.chain([SERVER]).map(|host| self.facts[usize::from(host)]).collect();
        // A connection may be accepted long after it began.
        let began = match (end.host, end.peer) {
            (SERVER, Some(peer)) => self.ends[peer].since,
            (SERVER, None) => 0,
            _ => end.since,
        };
        let is_mixed = self.is_mixed(index) || end.peer.is_some_and(|peer| self.is_mixed(peer));
        let lost = is_mixed
            || involved.iter().any(|facts| facts.lost_until.is_some_and(|until| began <= until));
        // A connection follows its peer only with an AEAD, once the first address is validated, and not in
        // TIME-WAIT.
        let has_moved = involved.iter().any(|facts| facts.has_moved);
        let follows = self.follows();
        let is_opening = end.peer.is_none_or(|peer| self.ends[peer].peer.is_none());
        // Its connection may have ended before its application has read everything.
        let is_done = end.peer.map(|peer| &self.ends[peer]);
        let is_done = is_done.is_some_and(|peer| peer.halves == 0 || peer.delivered);
        let is_forgotten = has_moved && is_done;
        let is_left_behind =
            self.is_left_behind(index) || end.peer.is_some_and(|peer| self.is_left_behind(peer));
        let unreachable = involved.iter().map(|facts| facts.outage).sum::<u64>() > HARMLESS_OUTAGE
            || (has_moved && (is_opening || !follows || is_left_behind));
        let gives_up = match end.peer {
            Some(peer) => self.ends[peer].gives_up,
            None => kinds.has(Kind::Drops) || kinds.has(Kind::Cancellation),
        };
        // A side short of memory gives up early what its application has dropped undelivered.
        let drops_rest = kinds.has(Kind::MemoryLimit)
            && end
                .peer
                .is_some_and(|peer| self.ends[peer].halves == 0 && !self.ends[peer].delivered);
        let is_new = end.peer.is_none();
        let refuses = is_new && (self.drains || kinds.has(Kind::ConnectionLimits));
        let is_accepted = end.host == SERVER && is_new;
        let forged = is_accepted && kinds.has(Kind::Forgery);
        // Its `connect` was dropped before the listener answered: no peer is left to be validated.
        let abandoned = is_accepted && kinds.has(Kind::Cancellation);
        match error {
            ConnectionError::Closed => true,
            ConnectionError::Reset if drops_rest => true,
            ConnectionError::Reset
            | ConnectionError::PeerStateLost
            | ConnectionError::PeerRestarted => {
                lost || unreachable || gives_up || refuses || forged || is_forgotten
            }
            // Or it moved before it was validated. Or it has ended, its few answers to FIN failed, and nothing more
            // may be sent to it.
            ConnectionError::DeadPeer(TimeoutCause::Unvalidated)
                if abandoned || has_moved || (is_done && kinds.has(Kind::SendErrors)) =>
            {
                true
            }
            ConnectionError::DeadPeer(TimeoutCause::Refusal)
                if abandoned && kinds.has(Kind::RecvErrors) =>
            {
                true
            }
            ConnectionError::ConnectTimeout(_)
            | ConnectionError::DeadPeer(_)
            | ConnectionError::IdleTimeout
            | ConnectionError::LingerTimeout => {
                lost || unreachable || refuses || forged || is_forgotten
            }
            ConnectionError::Refused => lost || refuses,
            ConnectionError::PortUnreachable => kinds.has(Kind::RecvErrors),
            ConnectionError::Aborted => end.gives_up,
            ConnectionError::ProtocolViolation => forged,
            _ => false,
        }
    }

    /// The listener ends the write sides of all its connections.
    pub(super) fn on_hand_over(&mut self) {
        (self.drains, self.hands_over) = (true, true);
        let ends = self.ends.iter_mut().filter(|end| end.host == SERVER);
        ends.for_each(|end| end.closed = true);
    }

    /// A process has ended: its ends do nothing more. `in_order`: its driver sent the ends of its streams.
    pub(super) fn on_process_end(&mut self, host: u8, in_order: bool) {
        for end in self.ends.iter_mut().filter(|end| end.host == host) {
            end.halves = 0;
            end.closed |= in_order;
        }
        let facts = self.facts(host);
        facts.lost_until = Some(u64::MAX);
        facts.process += 1;
    }

    /// Ends whose application is not done yet.
    pub(super) fn in_use(&self) -> impl Iterator<Item = (usize, &End)> {
        self.ends.iter().enumerate().filter(|(_, end)| end.halves > 0)
    }

    /// Checks after the run: the bytes promised to writers have been read.
    pub(super) fn check_promises(&self) {
        for (index, end) in self.ends.iter().enumerate().filter(|(_, end)| end.delivered) {
            let readers: Vec<_> = self.ends.iter().filter(|e| e.peer == Some(index)).collect();
            let has_all = |reader: &&End| reader.read == end.written;
            let excused = self.facts.iter().any(|facts| facts.lost_until.is_some())
                || readers.iter().any(|reader| reader.gives_up)
                || (readers.is_empty() && self.drains)
                // The caller of `connect` was gone before it had a stream to read.
                || (readers.is_empty()
                    && end.host == SERVER
                    && self.plan.kinds.has(Kind::Cancellation));
            assert!(
                excused || readers.iter().any(has_all),
                "shutdown of end {index} was successful, and its peer has less: {end:?}, {readers:?}"
            );
        }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.ends.iter().map(|end| end.read).sum()
    }
}

/// Byte `at` of the stream that `end` writes.
fn byte(end: usize, at: u64) -> u8 {
    if at < NAME {
        return (MAGIC ^ end as u64).to_le_bytes()[at as usize];
    }
    let mixed = (end as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ at.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed >> 32) as u8
}
