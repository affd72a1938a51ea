//! Demultiplexer: the connection that a datagram belongs to, by address and conversation id.
//!
//! A conversation id is valid for one address: the same id from another address reaches the
//! connection only after a validated migration (RFC 9000 9). An ended connection stays in TIME-WAIT
//! for [`TIME_WAIT_DURATION`] ([`TimeWait`]), so that a late duplicate of its initial segment opens
//! no connection.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Instant;

use crate::core::open::{InitialHash, InitialSegment, assign_conv};
use crate::core::segment::{self, HEADER_LEN, Header};
use crate::core::time_wait::{TIME_WAIT_DURATION, TimeWait, TimeWaitOutcome};
use crate::driver::expiring_map::ExpiringMap;
use crate::driver::live_convs::LiveConvs;
use crate::shared::notifier::ConnId;
use crate::shared::requests::TimeWaitEntry;
use crate::util::shrink_sparse;
use crate::util::sync::{Arc, Mutex, lock};

/// Most connections in TIME-WAIT; beyond that the oldest is dropped.
const MAX_TIME_WAITS: usize = 4_096;

/// Keyed at random: peers cannot construct initial segments whose hashes collide. One for all endpoints of
/// the process, since one may take over the connections in TIME-WAIT of another.
static INITIAL_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What names a connection on the wire: the peer's address and the conversation id.
pub(crate) type Key = (SocketAddr, u32);

/// Where a datagram goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To this open connection.
    Existing(ConnId),
    /// To a new connection, if the endpoint accepts one: the hash of the initial segment.
    Open(InitialHash),
    /// To a connection in TIME-WAIT, which replies with this segment.
    Reply(Header),
    /// To a connection in TIME-WAIT, which drops it.
    TimeWait,
    /// Nowhere: valid segments of an unknown connection.
    Unknown,
    /// Nowhere: an incomplete segment, an unknown command, or different conversation ids.
    Malformed,
    /// Nowhere: shorter than one header.
    Truncated,
}

/// Table of the connections of one endpoint, open and in TIME-WAIT.
#[derive(Debug, Default)]
pub(crate) struct Demux {
    live: HashMap<Key, ConnId>,
    /// The conversation ids of `live`, shared by the shards of a listener. `Some` from
    /// [`Self::track_convs`] on. No other lock is taken while this one is held.
    live_convs: Option<Arc<Mutex<LiveConvs>>>,
    /// Validated connections by conversation id alone, usually one per id, where that is needed:
    /// with migration, or a cipher that has a key.
    by_conv: HashMap<u32, Vec<ConnId>>,
    /// Cache of the latest lookup: the datagrams of a GRO batch usually belong to one connection.
    recent: Option<(Key, ConnId)>,
    /// Connections in TIME-WAIT.
    ended: ExpiringMap<Key, TimeWait>,
}

impl Demux {
    /// `is_listener`: as [`Self::track_convs`].
    pub(crate) fn new(is_listener: bool) -> Self {
        Self { live_convs: is_listener.then(Arc::default), ..Self::default() }
    }

    /// Finds the connection of `datagram`, or what else to do with it.
    pub(crate) fn route(&mut self, now: Instant, from: &SocketAddr, datagram: &[u8]) -> Route {
        let Some(conv) = segment::conv_of(datagram) else { return Route::Truncated };
        if datagram.len() < HEADER_LEN {
            return Route::Truncated;
        }
        if let Some(((recent, of), id)) = &self.recent
            && recent == from
            && *of == conv
        {
            return Route::Existing(*id);
        }
        let key = (*from, conv);
        if let Some(id) = self.live.get(&key) {
            self.recent = Some((key, *id));
            return Route::Existing(*id);
        }
        self.route_unknown(now, key, datagram)
    }

    fn route_unknown(&mut self, now: Instant, key: Key, datagram: &[u8]) -> Route {
        if segment::validate(datagram, key.1).is_err() {
            return Route::Malformed;
        }
        let initial = Self::initial_hash(datagram);
        self.expire(now);
        match (self.ended.get_mut(&key), initial) {
            (Some(time_wait), initial) => match time_wait.on_datagram(initial, datagram) {
                TimeWaitOutcome::Open(initial) => Route::Open(initial),
                TimeWaitOutcome::Reply(header) => Route::Reply(header),
                TimeWaitOutcome::Drop => Route::TimeWait,
            },
            (None, Some(initial)) => Route::Open(initial),
            (None, None) => Route::Unknown,
        }
    }

    /// The hash of the initial segment that `datagram` begins with; `None` without one.
    pub(crate) fn initial_hash(datagram: &[u8]) -> Option<InitialHash> {
        InitialSegment::parse(datagram).map(Self::hash)
    }

    /// The hash of the first data of a connection (`sn` 0) if `datagram` contains it, at any place.
    /// Equal to the hash of an initial segment with the same data.
    pub(crate) fn first_data_hash(datagram: &[u8]) -> Option<InitialHash> {
        InitialSegment::find_data(datagram).map(Self::hash)
    }

    fn hash(initial: InitialSegment<'_>) -> InitialHash {
        initial.hashed(INITIAL_HASHER.hash_one(initial))
    }

    /// Rewrites an initial datagram with conversation id 0 to an id that depends only on the
    /// address and the initial segment: a retransmission is assigned the same id.
    pub(crate) fn assign_conv(from: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        segment::validate(datagram, 0).ok()?;
        let initial = Self::initial_hash(datagram)?;
        Some(assign_conv(datagram, INITIAL_HASHER.hash_one((from, initial))))
    }

    /// Lets a connection, whose peer is validated, be found by its conversation id alone.
    pub(crate) fn index_conv(&mut self, conv: u32, id: ConnId) {
        self.by_conv.entry(conv).or_default().push(id);
    }

    /// The validated connections with conversation id `conv`.
    pub(crate) fn with_conv(&self, conv: u32) -> &[ConnId] {
        self.by_conv.get(&conv).map_or(&[], Vec::as_slice)
    }

    /// The only connection with conversation id `conv` that may migrate; `None` if there are
    /// several.
    pub(crate) fn migratable(&self, conv: u32) -> Option<ConnId> {
        match self.with_conv(conv) {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// Changes the address of a connection. Returns false, and changes nothing, if another
    /// connection is open under `to`.
    pub(crate) fn rekey(&mut self, from: Key, to: Key, id: ConnId) -> bool {
        if self.live.contains_key(&to) || self.live.get(&from) != Some(&id) {
            return false;
        }
        self.remove_live(&from);
        self.insert(to, id);
        true
    }

    /// The open connection under `key`.
    pub(crate) fn find(&self, key: &Key) -> Option<ConnId> {
        match &self.recent {
            Some((recent, id)) if recent == key => Some(*id),
            _ => self.live.get(key).copied(),
        }
    }

    pub(crate) fn insert(&mut self, key: Key, id: ConnId) {
        self.ended.remove(&key);
        if self.live.insert(key, id).is_none()
            && let Some(convs) = &self.live_convs
        {
            lock(convs).insert(key.1);
        }
    }

    fn remove_live(&mut self, key: &Key) {
        if self.live.remove(key).is_none() {
            return;
        }
        shrink_sparse(&mut self.live);
        self.recent = None;
        if let Some(convs) = &self.live_convs {
            lock(convs).remove(key.1);
        }
    }

    /// From now on [`Self::is_live`] may be asked. Only a listener does, and the table takes memory.
    pub(crate) fn track_convs(&mut self) {
        if self.live_convs.is_none() {
            let mut convs = LiveConvs::default();
            self.live.keys().for_each(|key| convs.insert(key.1));
            self.live_convs = Some(Arc::new(Mutex::new(convs)));
        }
    }

    /// The ids are those of all shards of a listener. Called before the first connection.
    pub(crate) fn share_convs(&mut self, convs: Arc<Mutex<LiveConvs>>) {
        self.live_convs = Some(convs);
    }

    /// The driver ends, and its connections with it; other shards may go on.
    pub(crate) fn release_convs(&mut self) {
        if let Some(convs) = self.live_convs.take() {
            let mut convs = lock(&convs);
            self.live.keys().for_each(|key| convs.remove(key.1));
        }
    }

    /// Whether a connection with conversation id `conv` is open, at any address. Always false
    /// before [`Self::track_convs`].
    pub(crate) fn is_live(&self, conv: u32) -> bool {
        self.live_convs.as_ref().is_some_and(|convs| lock(convs).contains(conv))
    }

    /// Whether a connection under `key` is open or in TIME-WAIT.
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.live.contains_key(key) || self.ended.contains(key)
    }

    /// Removes the connection `id` and stores its TIME-WAIT state. Does nothing if another
    /// connection is open under `key`.
    pub(crate) fn remove(&mut self, now: Instant, key: Key, id: ConnId, time_wait: TimeWait) {
        if !self.forget(key, id) {
            return;
        }
        self.expire(now);
        self.insert_time_wait((key, now + TIME_WAIT_DURATION, time_wait));
    }

    fn insert_time_wait(&mut self, (key, until, time_wait): TimeWaitEntry) {
        if self.ended.len() >= MAX_TIME_WAITS {
            self.ended.pop_first();
        }
        self.ended.insert(until, key, time_wait);
    }

    /// Takes over connections in TIME-WAIT of an endpoint that had the port before.
    pub(crate) fn inherit_time_wait(&mut self, entries: impl IntoIterator<Item = TimeWaitEntry>) {
        for entry in entries {
            self.insert_time_wait(entry);
        }
    }

    /// Removes all connections in TIME-WAIT, for the next endpoint on the port.
    pub(crate) fn take_time_wait(&mut self) -> Vec<TimeWaitEntry> {
        std::iter::from_fn(|| self.ended.pop_first()).collect()
    }

    /// Removes the connection `id` without TIME-WAIT. Returns false if another connection is open
    /// under `key`.
    pub(crate) fn forget(&mut self, key: Key, id: ConnId) -> bool {
        if self.live.get(&key) != Some(&id) {
            return false;
        }
        self.remove_live(&key);
        if let Some(ids) = self.by_conv.get_mut(&key.1) {
            ids.retain(|known| *known != id);
            if ids.is_empty() {
                self.by_conv.remove(&key.1);
                shrink_sparse(&mut self.by_conv);
            }
        }
        true
    }

    /// Whether `initial` has ended the connection in TIME-WAIT under `key` and may open the next one: once.
    pub(crate) fn take_successor(&mut self, key: &Key, initial: InitialHash) -> bool {
        let time_wait = self.ended.get_mut(key);
        time_wait.is_some_and(|ended| ended.successor.take_if(|own| *own == initial).is_some())
    }

    /// Drops connections whose TIME-WAIT is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.ended.pop_expired(now).is_some() {}
    }

    /// `count` connections exist.
    #[cfg(feature = "_testkit")]
    pub(crate) fn check_invariants(&self, count: usize) {
        if let Some(convs) = &self.live_convs {
            let (ids, has_shards) = (lock(convs).len(), Arc::strong_count(convs) > 1);
            let live = self.live.len();
            assert!(ids == live || (has_shards && ids > live), "{ids} ids of {live} connections");
        }
        assert!(self.live.len() <= count, "{} keys of {count} connections", self.live.len());
        let indexed: usize = self.by_conv.values().map(Vec::len).sum();
        assert!(indexed <= count, "{indexed} by id of {count} connections");
        assert!(self.ended.values().count() <= MAX_TIME_WAITS);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;
    use crate::core::open::OpenedBy;
    use crate::core::segment::Command;
    use crate::core::seq::{Sn, Ts};

    const ID: ConnId = ConnId { slot: 3, generation: 1 };

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn datagram(command: Command, sn: u32, una: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Header {
            conv: 9,
            command,
            frg: 0,
            wnd: 32,
            ts: Ts(5),
            sn: Sn(sn),
            una: Sn(una),
            len: u32::try_from(payload.len()).unwrap(),
        }
        .emit(&mut out);
        out.extend_from_slice(payload);
        out
    }

    fn time_wait(opened_by: OpenedBy, rcv_nxt: u32) -> TimeWait {
        let (rcv_nxt, snd_una) = (Sn(rcv_nxt), Sn(0));
        TimeWait {
            opened_by,
            rcv_nxt,
            snd_una,
            supports_control: false,
            reset_on_data: true,
            all_read: false,
            successor: None,
        }
    }

    #[test]
    fn initial_segment_alone_opens_a_connection() {
        let mut demux = Demux::default();
        let now = Instant::now();
        let mut route = |bytes: &[u8]| demux.route(now, &from(1), bytes);
        assert!(matches!(route(&datagram(Command::Push, 0, 0, b"hi")), Route::Open(_)));
        assert_eq!(route(&datagram(Command::Push, 1, 0, b"hi")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Push, 0, 1, b"hi")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Ack, 0, 0, b"")), Route::Unknown);
        assert_eq!(route(&datagram(Command::WindowProbe, 0, 0, b"")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Push, 0, 0, b"hi")[..25]), Route::Malformed);
        assert_eq!(route(b"short"), Route::Truncated);
    }

    #[test]
    fn datagram_from_another_address_or_id_is_of_another_connection() {
        let mut demux = Demux::default();
        let now = Instant::now();
        demux.insert((from(1), 9), ID);
        let data = datagram(Command::Push, 5, 0, b"x");
        for _ in 0..2 {
            assert_eq!(demux.route(now, &from(1), &data), Route::Existing(ID));
        }
        assert_eq!(demux.route(now, &from(2), &data), Route::Unknown);
        let mut foreign = data;
        foreign[0] = 8;
        assert_eq!(demux.route(now, &from(1), &foreign), Route::Unknown);
    }

    #[test]
    fn time_wait_acknowledges_duplicates_and_passes_another_initial_segment() {
        let mut demux = Demux::default();
        let now = Instant::now();
        let first = datagram(Command::Push, 0, 0, b"first");
        let Route::Open(hash) = demux.route(now, &from(1), &first) else { panic!("opens") };
        demux.insert((from(1), 9), ID);
        let successor = ConnId { slot: 3, generation: 2 };
        let ended = time_wait(OpenedBy::by(hash), 4);
        demux.remove(now, (from(1), 9), successor, ended);
        assert_eq!(demux.route(now, &from(1), &first), Route::Existing(ID), "identity matters");
        demux.remove(now, (from(1), 9), ID, ended);

        let last = datagram(Command::Push, 3, 7, b"last");
        let Route::Reply(ack) = demux.route(now, &from(1), &last) else { panic!("acks") };
        assert_eq!((ack.command, ack.sn, ack.ts, ack.una), (Command::Ack, Sn(3), Ts(5), Sn(4)));
        assert_eq!(demux.route(now, &from(1), &first), Route::TimeWait, "a restart, perhaps");
        let ping = datagram(Command::Push, 0_u32.wrapping_sub(1 << 30), 0, b"");
        assert_eq!(demux.route(now, &from(1), &ping), Route::TimeWait, "a pong would say: open");
        let new = datagram(Command::Push, 4, 0, b"x");
        assert_eq!(demux.route(now, &from(1), &new), Route::TimeWait);
        let second = datagram(Command::Push, 0, 0, b"second");
        assert!(matches!(demux.route(now, &from(1), &second), Route::Open(_)));

        let later = now + TIME_WAIT_DURATION;
        assert_eq!(demux.route(later, &from(1), &first), Route::Open(hash));
    }

    #[test]
    fn time_wait_table_is_bounded_and_drops_the_oldest() {
        let mut demux = Demux::default();
        let now = Instant::now();
        for conv in 0..10_000 {
            demux.insert((from(1), conv), ID);
            demux.remove(now, (from(1), conv), ID, time_wait(OpenedBy::default(), 0));
        }
        assert_eq!(demux.ended.len(), MAX_TIME_WAITS);
        assert!(!demux.contains(&(from(1), 0)) && demux.contains(&(from(1), 9_999)));
    }
}
