//! The connections of an endpoint, and the tables that find them: the demultiplexer by address and
//! conversation id, the peers by address.
//!
//! A conversation id is valid for one address: the same id from another address reaches the connection only
//! after a validated migration (RFC 9000 9). An ended connection stays in TIME-WAIT for
//! [`TIME_WAIT_DURATION`] ([`TimeWait`]), so that a late duplicate of its initial segment opens no
//! connection.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::config::Config;
use crate::core::open::{InitialHash, InitialSegment, assign_conv};
use crate::core::segment::{self, HEADER_LEN, Header};
use crate::core::time_wait::{TIME_WAIT_DURATION, TimeWait, TimeWaitOutcome};
use crate::driver::connection::{Conn, Key};
use crate::driver::expiring_map::ExpiringMap;
use crate::driver::fec::FecSender;
use crate::driver::memory::{Holder, Memory};
use crate::fec::{FecConfig, FecDecoder, FecFlag, FecStats, datagram_of, fec_flag};
use crate::shared::notifier::ConnId;
use crate::shared::requests::TimeWaitEntry;
use crate::sys::prefetch;
use crate::util::path::Path;
use crate::util::shrink_sparse;
use crate::util::sync::{Arc, Mutex, lock};

/// Visits of other connections between the prefetch of a connection, the prefetch of its shared part, and its
/// visit.
const PREFETCH_DISTANCE: usize = 3;
/// Datagrams of a GRO batch whose connections are prefetched together.
pub(super) const PREFETCH_BATCH: usize = 8;

/// How long another address may not take the conversation id of a silent peer. A restarted client that chose
/// the id itself can open again after that.
const CONV_IN_USE: Duration = Duration::from_secs(10);

/// How long datagrams of a peer that has moved may still arrive from its old address.
const MOVE_TIME: Duration = Duration::from_secs(1);

/// Most addresses in `Demux::openers`; beyond that the oldest is dropped.
const MAX_OPENERS: usize = 1_024;

/// Most connections in TIME-WAIT; beyond that the oldest is dropped.
const MAX_TIME_WAITS: usize = 4_096;

/// Keyed at random, so peers cannot construct initial segments whose hashes collide. All endpoints of the
/// process share it, since one may take over the TIME-WAIT states of another.
static INITIAL_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The connections of an endpoint, and the tables that find them.
#[derive(Debug)]
pub(super) struct Routing {
    pub(super) conns: Slab<Box<Conn>>,
    pub(super) demux: Demux,
    pub(super) peers: PeerTable,
    /// Connections to serve. Invariant: a connection is in it at most once (`Conn::mark_ready`).
    pub(super) ready: VecDeque<ConnId>,
    /// Generation of the last connection: distinguishes connections that used the same slot.
    generations: u32,
}

/// The connection `id`, while other fields of [`Routing`] are borrowed.
#[inline]
pub(super) fn conn_mut(conns: &mut Slab<Box<Conn>>, id: ConnId) -> Option<&mut Conn> {
    let conn = conns.get_mut(id.slot as usize)?;
    (conn.id() == id).then_some(&mut **conn)
}

impl Routing {
    /// `seed`: see [`PeerTable::new`].
    pub(super) fn new(config: &Config, is_listener: bool, seed: u64) -> Self {
        Self {
            conns: Slab::new(),
            demux: Demux::new(is_listener),
            peers: PeerTable::new(config, seed),
            ready: VecDeque::new(),
            generations: 0,
        }
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.conns.get(id.slot as usize)?;
        (conn.id() == id).then_some(&**conn)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        conn_mut(&mut self.conns, id)
    }

    /// The id of the next connection that [`Self::insert`] takes.
    pub(super) fn next_id(&mut self) -> io::Result<ConnId> {
        self.generations = self.generations.wrapping_add(1);
        let slot = u32::try_from(self.conns.vacant_key()).map_err(io::Error::other)?;
        Ok(ConnId { slot, generation: self.generations })
    }

    /// Adds a connection with the id of [`Self::next_id`], to be served.
    pub(super) fn insert(&mut self, conn: Box<Conn>) {
        let (key, id) = (conn.key(), conn.id());
        self.conns.insert(conn);
        self.demux.insert(key, id);
        self.peers.join(key.0, id.slot);
        self.schedule(id);
    }

    /// Puts a connection on the ready list, unless it is marked ready already.
    pub(super) fn schedule(&mut self, id: ConnId) {
        if self.get_mut(id).is_some_and(Conn::mark_ready) {
            self.ready.push_back(id);
        }
    }

    /// Prefetches connections that are visited soon: most of thousands of idle ones are in no cache.
    #[inline]
    fn prefetch(&self, slots: impl Iterator<Item = usize> + Clone) {
        for conn in slots.clone().filter_map(|slot| self.conns.get(slot)) {
            prefetch(&**conn);
        }
        // The address of the shared part is read from the connection, which is loaded by now.
        for conn in slots.filter_map(|slot| self.conns.get(slot)) {
            prefetch(conn.shared());
        }
    }

    /// Prefetches connections of a list that is visited in order. `slot_at`: the slot of the connection that
    /// is visited this number of visits later.
    #[inline]
    pub(super) fn prefetch_ahead(&self, slot_at: impl Fn(usize) -> Option<usize>) {
        let conn = |ahead| self.conns.get(slot_at(ahead)?);
        if let Some(conn) = conn(2 * PREFETCH_DISTANCE) {
            prefetch(&**conn);
        }
        if let Some(conn) = conn(PREFETCH_DISTANCE) {
            prefetch(conn.shared());
        }
    }

    /// Prefetches the connections that up to [`PREFETCH_BATCH`] datagrams go to, if there are several.
    pub(super) fn prefetch_receivers<'a>(
        &self,
        from: &SocketAddr,
        datagrams: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let mut convs = datagrams.map(|datagram| segment::conv_of(datagram_of(datagram)));
        let Some(first) = convs.next() else { return };
        if convs.clone().all(|conv| conv == first) {
            return;
        }
        let mut slots = [None; PREFETCH_BATCH];
        for (slot, conv) in slots.iter_mut().zip([first].into_iter().chain(convs)) {
            let id = conv.and_then(|conv| self.demux.find(&(*from, conv)));
            *slot = id.map(|id| id.slot as usize);
        }
        self.prefetch(slots.into_iter().flatten());
    }

    /// Connections with `peer` have opened or ended. At a listener that keeps one connection per address a
    /// connection may replace an earlier one only if it is alone. Only the latest two have to be told.
    pub(super) fn update_replaces(&mut self, peer: SocketAddr) {
        let is_alone = !self.peers.has_several(peer);
        for slot in self.peers.slots(peer).take(2) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.kcp.set_replaces(is_alone);
            }
        }
    }

    /// Whether a live peer at another address uses `conv` under the same key. Then the recorded datagrams of
    /// one of the two connections would be valid in the other.
    pub(super) fn is_conv_of_another_address(&self, now: Instant, key: Key) -> bool {
        let (from, conv) = key;
        self.demux.with_conv(conv).iter().any(|id| {
            let conn = self.get(*id);
            conn.is_some_and(|conn| conn.peer() != from && conn.is_alive(now, CONV_IN_USE))
        })
    }

    /// Shares the model of the path with another connection on it, if both peers are validated. A path is a
    /// local IP, a remote address and a port, since one address may have many hosts behind it.
    pub(super) fn share_path(&mut self, id: ConnId) {
        let slot = id.slot as usize;
        let conn = self.get(id).filter(|conn| !conn.is_unvalidated());
        let Some(path) = conn.map(Conn::active_path) else { return };
        let Some(other) = self.peers.sharer(path.peer, id.slot) else { return };
        if let Some((conn, other)) = self.conns.get2_mut(slot, other)
            && other.active_path() == path
            && !other.is_unvalidated()
        {
            conn.share_path(other);
        }
    }

    /// The system takes no datagram from the local IP of `path`: the host has lost it, or it is the broadcast
    /// address of a subnet. The system chooses the local IP until a new datagram of the peer, or its answer
    /// to a PATH_CHALLENGE, shows which one it uses.
    pub(super) fn on_source_gone(&mut self, now: Instant, path: Path) {
        for slot in self.peers.slots(path.peer) {
            if let Some(conn) = self.conns.get_mut(slot)
                && conn.on_source_gone(now, path)
                && conn.mark_ready()
            {
                self.ready.push_back(conn.id());
            }
        }
    }

    /// The operating system refused a datagram of `size` bytes on `path` (EMSGSIZE). Handled like a Packet Too
    /// Big message (RFC 8899 4.6): lowers the MTU of every connection on that path.
    pub(super) fn on_message_too_big(&mut self, now: Instant, path: Path, size: usize) {
        let further = self.demux.further_at(path.peer).map(|id| id.slot as usize);
        for slot in self.peers.slots(path.peer).chain(further) {
            if let Some(conn) = self.conns.get_mut(slot) {
                conn.on_message_too_big(now, path, size);
            }
        }
    }
}

/// The destination of a datagram.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
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

/// Who is at an address that uses the conversation id of a connection at another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opener {
    /// Another peer: it opens a connection of its own, and does not migrate with the other one.
    Opens,
    /// The same until it pings: its first data was refused.
    Data { since: Instant },
    /// Perhaps the peer of the other connection.
    Peer,
}

/// Table of the connections of one endpoint, open and in TIME-WAIT.
#[derive(Debug, Default)]
pub(super) struct Demux {
    live: HashMap<Key, ConnId>,
    /// The conversation ids of `live`, shared by the shards of a listener. `Some` from
    /// [`Self::track_convs`] on. No other lock is taken while this one is held.
    live_convs: Option<Arc<Mutex<LiveConvs>>>,
    /// Further paths of connections, as the peers announced them. Ordered, since an error of the socket names
    /// an address alone.
    further: BTreeMap<Key, ConnId>,
    /// Validated connections by conversation id alone, usually one per id. Filled with migration, or a
    /// cipher that has a key.
    by_conv: HashMap<u32, Vec<ConnId>>,
    /// Addresses that use the conversation id of a connection at another address.
    openers: ExpiringMap<Key, Opener>,
    /// Cache of the latest lookup: the datagrams of a GRO batch usually belong to one connection.
    recent: Option<(Key, ConnId)>,
    /// Connections in TIME-WAIT.
    ended: ExpiringMap<Key, TimeWait>,
}

impl Demux {
    /// `is_listener`: see [`Self::track_convs`].
    pub(super) fn new(is_listener: bool) -> Self {
        Self { live_convs: is_listener.then(Arc::default), ..Self::default() }
    }

    /// Finds the destination of `datagram`.
    pub(super) fn route(&mut self, now: Instant, from: &SocketAddr, datagram: &[u8]) -> Route {
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
        if let Some(id) = self.further.get(&key) {
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
    pub(super) fn initial_hash(datagram: &[u8]) -> Option<InitialHash> {
        InitialSegment::parse(datagram).map(Self::hash)
    }

    /// The hash of the first data of a connection (`sn` 0) if `datagram` contains it, at any place.
    /// Equal to the hash of an initial segment with the same data.
    pub(super) fn first_data_hash(datagram: &[u8]) -> Option<InitialHash> {
        InitialSegment::find_data(datagram).map(Self::hash)
    }

    fn hash(initial: InitialSegment<'_>) -> InitialHash {
        initial.hashed(INITIAL_HASHER.hash_one(initial))
    }

    /// Rewrites an initial datagram with conversation id 0 to an id that depends only on the
    /// address and the initial segment: a retransmission is assigned the same id.
    pub(super) fn assign_conv(from: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        segment::validate(datagram, 0).ok()?;
        let initial = Self::initial_hash(datagram)?;
        Some(assign_conv(datagram, INITIAL_HASHER.hash_one((from, initial))))
    }

    /// Indexes a connection with a validated peer by its conversation id alone.
    pub(super) fn index_conv(&mut self, conv: u32, id: ConnId) {
        self.by_conv.entry(conv).or_default().push(id);
    }

    /// The validated connections with conversation id `conv`.
    pub(super) fn with_conv(&self, conv: u32) -> &[ConnId] {
        self.by_conv.get(&conv).map_or(&[], Vec::as_slice)
    }

    /// Adds a further path of the connection `id`. Returns false if another connection has it.
    pub(super) fn insert_further(&mut self, key: Key, id: ConnId) -> bool {
        !self.live.contains_key(&key) && *self.further.entry(key).or_insert(id) == id
    }

    /// A connection has ended, also under the key of a further path.
    pub(super) fn end_further(&mut self, now: Instant, key: Key, id: ConnId, time_wait: TimeWait) {
        if self.further.get(&key) == Some(&id) {
            self.insert_time_wait(key, now + TIME_WAIT_DURATION, time_wait);
        }
    }

    #[cfg(test)]
    pub(super) fn further(&self) -> usize {
        self.further.len()
    }

    pub(super) fn remove_further(&mut self, key: Key, id: ConnId) {
        if self.further.get(&key) == Some(&id) {
            self.further.remove(&key);
        }
    }

    /// The connections with a further path to `peer`.
    fn further_at(&self, peer: SocketAddr) -> impl Iterator<Item = ConnId> + '_ {
        self.further.range((peer, 0)..=(peer, u32::MAX)).map(|(_, id)| *id)
    }

    /// An initial segment under `key` was refused, since a live peer at another address uses the id. `has_data`: it may
    /// be the first data of that peer.
    pub(super) fn on_conv_in_use(&mut self, now: Instant, key: Key, has_data: bool) {
        let known = self.openers.get_live(now, &key).copied().filter(|_| has_data);
        let opener = if has_data { Opener::Data { since: now } } else { Opener::Opens };
        self.insert_opener(now, key, known.unwrap_or(opener));
    }

    /// A ping came under `key`, while the connection with this id at another address awaits its first data, which
    /// looks like an initial segment. The ping is of the peer of that connection, unless another initial segment came
    /// under `key`, or datagrams of the peer still come to the other address, the latest at `alive_at`.
    pub(super) fn on_other_pinged(&mut self, now: Instant, key: Key, alive_at: Instant) {
        match self.openers.get_live(now, &key) {
            Some(Opener::Opens) => {}
            Some(Opener::Data { since }) if alive_at > *since + MOVE_TIME => {}
            _ => self.insert_opener(now, key, Opener::Peer),
        }
    }

    fn insert_opener(&mut self, now: Instant, key: Key, opener: Opener) {
        if self.openers.len() >= MAX_OPENERS {
            self.openers.pop_first();
        }
        self.openers.insert(now + CONV_IN_USE, key, opener);
    }

    /// Whether the peer under `key` tries to open a connection while another address uses the id.
    pub(super) fn is_opener(&self, now: Instant, key: &Key) -> bool {
        matches!(self.openers.get_live(now, key), Some(Opener::Opens | Opener::Data { .. }))
    }

    /// The connection with conversation id `conv` that may migrate; `None` if there are several.
    pub(super) fn migratable(&self, conv: u32) -> Option<ConnId> {
        match self.with_conv(conv) {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// Changes the address of a connection. Returns false, and changes nothing, if another
    /// connection is open under `to`.
    pub(super) fn rekey(&mut self, from: Key, to: Key, id: ConnId) -> bool {
        if self.live.contains_key(&to) || self.live.get(&from) != Some(&id) {
            return false;
        }
        self.remove_live(&from);
        self.insert(to, id);
        true
    }

    pub(super) fn find(&self, key: &Key) -> Option<ConnId> {
        match &self.recent {
            Some((recent, id)) if recent == key => Some(*id),
            _ => self.live.get(key).or_else(|| self.further.get(key)).copied(),
        }
    }

    pub(super) fn insert(&mut self, key: Key, id: ConnId) {
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

    /// Begins the table behind [`Self::is_live`]. Only a listener reads it, and it takes memory.
    pub(super) fn track_convs(&mut self) {
        if self.live_convs.is_none() {
            let mut convs = LiveConvs::default();
            self.live.keys().for_each(|key| convs.insert(key.1));
            self.live_convs = Some(Arc::new(Mutex::new(convs)));
        }
    }

    /// Shares the ids of all shards of a listener. To be called before the first connection.
    pub(super) fn share_convs(&mut self, convs: Arc<Mutex<LiveConvs>>) {
        self.live_convs = Some(convs);
    }

    /// The driver ends, and its connections with it; other shards may go on.
    pub(super) fn release_convs(&mut self) {
        if let Some(convs) = self.live_convs.take() {
            let mut convs = lock(&convs);
            self.live.keys().for_each(|key| convs.remove(key.1));
        }
    }

    /// Whether a connection with conversation id `conv` is open, at any address. Always false
    /// before [`Self::track_convs`].
    pub(super) fn is_live(&self, conv: u32) -> bool {
        self.live_convs.as_ref().is_some_and(|convs| lock(convs).contains(conv))
    }

    /// Whether a connection under `key` is open or in TIME-WAIT.
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.live.contains_key(key) || self.ended.contains(key)
    }

    /// Removes the connection `id` and stores its TIME-WAIT state. Does nothing if another
    /// connection is open under `key`.
    pub(super) fn remove(&mut self, now: Instant, key: Key, id: ConnId, time_wait: TimeWait) {
        if !self.forget(key, id) {
            return;
        }
        self.expire(now);
        self.insert_time_wait(key, now + TIME_WAIT_DURATION, time_wait);
    }

    fn insert_time_wait(&mut self, key: Key, until: Instant, time_wait: TimeWait) {
        if self.ended.len() >= MAX_TIME_WAITS {
            self.ended.pop_first();
        }
        self.ended.insert(until, key, time_wait);
    }

    /// Takes over the TIME-WAIT states of an endpoint that had the port before.
    pub(super) fn inherit_time_wait(&mut self, entries: impl IntoIterator<Item = TimeWaitEntry>) {
        for (key, until, time_wait) in entries {
            self.insert_time_wait(key, until, time_wait);
        }
    }

    /// Removes all TIME-WAIT states, for the next endpoint on the port.
    pub(super) fn take_time_wait(&mut self) -> Vec<TimeWaitEntry> {
        std::iter::from_fn(|| self.ended.pop_first()).collect()
    }

    /// Removes the connection `id` without TIME-WAIT. Returns false if another connection is open
    /// under `key`.
    pub(super) fn forget(&mut self, key: Key, id: ConnId) -> bool {
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
    pub(super) fn take_successor(&mut self, key: &Key, initial: InitialHash) -> bool {
        let time_wait = self.ended.get_mut(key);
        time_wait.is_some_and(|ended| ended.successor.take_if(|own| *own == initial).is_some())
    }

    /// Drops expired TIME-WAIT states.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.ended.pop_expired(now).is_some() {}
        while self.openers.pop_expired(now).is_some() {}
    }

    /// `count` connections exist.
    #[cfg(feature = "_testkit")]
    pub(super) fn check_invariants(&self, count: usize) {
        use crate::core::path::set::MAX_PATHS;

        if let Some(convs) = &self.live_convs {
            let (ids, has_shards) = (lock(convs).len(), Arc::strong_count(convs) > 1);
            let live = self.live.len();
            assert!(ids == live || (has_shards && ids > live), "{ids} ids of {live} connections");
        }
        assert!(
            self.further.len() < count.max(1) * usize::from(MAX_PATHS),
            "{} further",
            self.further.len()
        );
        assert!(self.live.len() <= count, "{} keys of {count} connections", self.live.len());
        let indexed: usize = self.by_conv.values().map(Vec::len).sum();
        assert!(indexed <= count, "{indexed} by id of {count} connections");
        assert!(self.ended.values().count() <= MAX_TIME_WAITS);
    }
}

/// Largest datagram of kcp-go in bytes (mtuLimit).
const KCP_GO_MTU_LIMIT: usize = 1_500;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// The connections and the FEC state of one remote address.
///
/// Parity carries no conversation id, so FEC belongs to the address, as in kcp-go: the state is created with
/// the first connection of an address and dropped with the last.
#[derive(Debug)]
struct Peer {
    /// Slot of the newest connection with this address; the others are linked in
    /// `PeerTable::links`.
    first: u32,
    /// Slot of the connection whose path the next one shares; [`NONE`] without one.
    sharer: u32,
    /// True once a ping to the address was answered (RFC 9000 8.1).
    validated: bool,
    /// Bytes of the endpoint's memory that the decoder holds.
    held: usize,
    /// Most bytes that the encoder holds: the parity of a group.
    encoder: usize,
    fec: Option<Box<FecSender>>,
    decoder: Option<Box<FecDecoder>>,
}

impl Peer {
    fn of(slot: u32) -> Self {
        let (sharer, validated, held, encoder) = (NONE, false, 0, 0);
        Self { first: slot, sharer, validated, held, encoder, fec: None, decoder: None }
    }

    /// The encoder has this layout from now on.
    fn count_encoder(&mut self, config: FecConfig, max_len: usize, memory: &mut Memory) {
        let encoder = config.parity_shards() * max_len;
        memory.update(self.holder(), self.encoder, encoder);
        self.encoder = encoder;
    }

    fn holder(&self) -> Holder {
        if self.validated { Holder::Validated } else { Holder::Unvalidated }
    }
}

/// Neighbours of a connection in the doubly linked list of its address.
#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

#[derive(Debug)]
pub(super) struct PeerTable {
    /// By slot: one doubly linked list per address, so that an operation costs the same however many
    /// connections other addresses have.
    links: Vec<Link>,
    map: HashMap<SocketAddr, Peer>,
    fec: Option<FecConfig>,
    /// Longest shard in bytes that is decoded: the larger of `Config::mtu` and kcp-go's limit.
    max_shard_len: usize,
    /// Number of addresses with a decoder; if it is 0, `stats_of` skips the lookup.
    decoders: usize,
    /// Sum of the statistics of all decoders.
    stats: FecStats,
    /// State from which the seqids come at which encoders start.
    seqids: u64,
}

/// The seqid at which an encoder starts. The peer may still hold packets of an earlier encoder, whose connections or
/// process have ended. With equal seqids both encoders would share groups, and the peer would recover wrong packets.
/// The seqid is below 2^30, which kcp-go counts as ahead of its own start.
fn next_seqid(state: &mut u64) -> u32 {
    // MMIX by Donald Knuth; its upper bits.
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 34) as u32
}

impl PeerTable {
    /// `seed`: random, for the seqids at which encoders start.
    pub(super) fn new(config: &Config, seed: u64) -> Self {
        let fec = config.kcp.redundancy.fec();
        let max_shard_len = usize::from(config.kcp.mtu).max(KCP_GO_MTU_LIMIT);
        let (links, map, stats) = (Vec::new(), HashMap::new(), FecStats::default());
        Self { links, map, fec, max_shard_len, decoders: 0, stats, seqids: seed }
    }

    pub(super) fn join(&mut self, addr: SocketAddr, slot: u32) {
        let next = match self.map.entry(addr) {
            Entry::Occupied(mut peer) => std::mem::replace(&mut peer.get_mut().first, slot),
            Entry::Vacant(place) => {
                place.insert(Peer::of(slot));
                NONE
            }
        };
        let link = Link { previous: NONE, next };
        match self.links.get_mut(slot as usize) {
            Some(place) => *place = link,
            // Slots are allocated in order, so this usually adds one link.
            None => self.links.resize(slot as usize + 1, link),
        }
        if let Some(neighbour) = self.links.get_mut(next as usize) {
            neighbour.previous = slot;
        }
    }

    pub(super) fn leave(&mut self, addr: SocketAddr, slot: u32, memory: &mut Memory) {
        let Some(Link { previous, next }) = self.links.get(slot as usize).copied() else { return };
        let neighbour = if next == NONE { previous } else { next };
        if let Some(peer) = self.map.get_mut(&addr).filter(|peer| peer.sharer == slot) {
            peer.sharer = neighbour;
        }
        if let Some(neighbour) = self.links.get_mut(next as usize) {
            neighbour.previous = previous;
        }
        if let Some(neighbour) = self.links.get_mut(previous as usize) {
            neighbour.next = next;
            return;
        }
        let Entry::Occupied(mut peer) = self.map.entry(addr) else { return };
        if next == NONE {
            self.decoders -= usize::from(peer.get().decoder.is_some());
            let peer = peer.remove();
            memory.update(peer.holder(), peer.held + peer.encoder, 0);
        } else {
            peer.get_mut().first = next;
        }
    }

    /// The slots of the connections with `addr`, the newest first.
    pub(super) fn slots(&self, addr: SocketAddr) -> impl Iterator<Item = usize> {
        let mut next = self.map.get(&addr).map_or(NONE, |peer| peer.first);
        std::iter::from_fn(move || {
            let slot = next as usize;
            next = self.links.get(slot)?.next;
            Some(slot)
        })
    }

    pub(super) fn contains(&self, addr: SocketAddr) -> bool {
        self.map.contains_key(&addr)
    }

    /// The only address with connections; `None` if there are several.
    pub(super) fn only(&self) -> Option<SocketAddr> {
        let mut addrs = self.map.keys();
        addrs.next().copied().filter(|_| addrs.next().is_none())
    }

    pub(super) fn has_several(&self, addr: SocketAddr) -> bool {
        self.slots(addr).nth(1).is_some()
    }

    /// Records that `addr` is validated (RFC 9000 8.1): a ping was answered from there.
    pub(super) fn validate(&mut self, addr: SocketAddr, memory: &mut Memory) {
        if let Some(peer) = self.map.get_mut(&addr).filter(|peer| !peer.validated) {
            peer.validated = true;
            memory.on_validated(peer.held + peer.encoder);
        }
    }

    /// Returns the slot of a connection with `addr` whose path the connection in `slot` may share. The next
    /// call returns `slot`.
    pub(super) fn sharer(&mut self, addr: SocketAddr, slot: u32) -> Option<usize> {
        let peer = self.map.get_mut(&addr)?;
        let sharer = std::mem::replace(&mut peer.sharer, slot);
        (sharer != NONE && sharer != slot).then_some(sharer as usize)
    }

    /// `None` without FEC.
    pub(super) fn fec_sender(
        &mut self,
        addr: SocketAddr,
        memory: &mut Memory,
    ) -> Option<&mut FecSender> {
        let config = self.fec?;
        let peer = self.map.get_mut(&addr)?;
        if peer.fec.is_none() {
            peer.count_encoder(config, self.max_shard_len, memory);
        }
        let seqids = &mut self.seqids;
        let new = || Box::new(FecSender::starting_at(config, next_seqid(seqids)));
        Some(peer.fec.get_or_insert_with(new))
    }

    /// When the connection `conv` closes the FEC group towards `addr`, unless the group is full by then.
    pub(super) fn fec_deadline(&self, addr: SocketAddr, conv: u32) -> Option<Instant> {
        self.fec?;
        self.map.get(&addr)?.fec.as_ref()?.deadline(conv)
    }

    /// Changes the FEC ratio towards `addr`, if FEC is on and the peer is known to decode any
    /// layout or may learn this one.
    pub(super) fn set_fec(
        &mut self,
        addr: SocketAddr,
        config: FecConfig,
        decodes_any: bool,
        memory: &mut Memory,
    ) {
        let Some(sender) = self.fec_sender(addr, memory) else { return };
        let max = if decodes_any { FecConfig::MAX_SHARDS } else { sender.max_shards() };
        sender.set_config(config, max);
        let config = sender.encoder().config();
        if let Some(peer) = self.map.get_mut(&addr) {
            peer.count_encoder(config, self.max_shard_len, memory);
        }
    }

    /// Most shards of a group towards `addr`, unless its decoder learns any layout; `None` without FEC.
    pub(super) fn max_fec_shards(&self, addr: SocketAddr) -> Option<usize> {
        self.fec?;
        let sender = self.map.get(&addr).and_then(|peer| peer.fec.as_ref());
        Some(sender.map_or(FecConfig::MAX_SHARDS, |sender| sender.max_shards()))
    }

    /// Feeds a shard of `addr` to its decoder and passes each reconstructed datagram to `recovered`, which
    /// returns whether the datagram is plausible. Returns whether the address is known.
    ///
    /// Without configured FEC the first parity from a validated address creates the decoder. A decoder above
    /// its quota of `memory` is dropped, and a new one begins with the next shard.
    pub(super) fn decode(
        &mut self,
        now: Instant,
        addr: SocketAddr,
        shard: &[u8],
        memory: &mut Memory,
        recovered: impl FnMut(&[u8]) -> bool,
    ) -> bool {
        let Some(peer) = self.map.get_mut(&addr) else { return false };
        if shard.len() > self.max_shard_len {
            return true;
        }
        // A shard is stored once, and the parity that is solved for has a row of the same size.
        let holder = peer.holder();
        if peer.held + 2 * shard.len() > memory.quota(holder) {
            // Its shards would keep memory short, and leave no room for new ones.
            self.decoders -= usize::from(peer.decoder.take().is_some());
            memory.update(holder, std::mem::take(&mut peer.held), 0);
            return true;
        }
        if peer.decoder.is_none() {
            if self.fec.is_none() && !(peer.validated && fec_flag(shard) == FecFlag::Parity) {
                return true;
            }
            self.decoders += 1;
        }
        let fec = self.fec;
        let decoder = peer.decoder.get_or_insert_with(|| {
            // Both sides usually have the same configuration.
            Box::new(fec.map_or_else(|| FecDecoder::new(None), FecDecoder::with_expected_layout))
        });
        feed(decoder, &mut self.stats, now, shard, recovered);
        let (shards, cache) = decoder.memory();
        memory.update(holder, peer.held, shards + cache);
        peer.held = shards + cache;
        true
    }

    /// The decoder for a run of data shards of `addr` whose datagrams are taken together. `None` if a shard
    /// may do more than join a group: make others recoverable, or begin a decoder.
    pub(super) fn data_shards(&mut self, addr: SocketAddr) -> Option<DataShards<'_>> {
        let peer = self.map.get_mut(&addr).filter(|peer| peer.validated)?;
        let begins = peer.decoder.is_none() && self.fec.is_some();
        if begins || peer.decoder.as_ref().is_some_and(|decoder| decoder.holds_parity()) {
            return None;
        }
        let decoder = peer.decoder.as_deref_mut();
        Some(DataShards { decoder, max_len: self.max_shard_len, stats: &mut self.stats })
    }

    pub(super) fn stats_of(&self, addr: SocketAddr) -> Option<FecStats> {
        if self.decoders == 0 {
            return None;
        }
        Some(self.map.get(&addr)?.decoder.as_ref()?.stats())
    }

    /// Bytes that the FEC of all addresses holds.
    #[cfg(feature = "_testkit")]
    pub(super) fn memory(&self) -> usize {
        self.map.values().map(|peer| peer.held + peer.encoder).sum()
    }

    #[cfg(feature = "_testkit")]
    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Statistics of all decoders, including those already dropped.
    pub(super) fn stats(&self) -> FecStats {
        self.stats
    }
}

/// The decoder of an address, while its data shards can recover nothing.
pub(super) struct DataShards<'a> {
    decoder: Option<&'a mut FecDecoder>,
    max_len: usize,
    stats: &'a mut FecStats,
}

impl DataShards<'_> {
    /// Feeds a data shard, see [`PeerTable::decode`].
    pub(super) fn input(&mut self, now: Instant, shard: &[u8]) {
        let Some(decoder) = self.decoder.as_deref_mut().filter(|_| shard.len() <= self.max_len)
        else {
            return;
        };
        feed(decoder, self.stats, now, shard, |_| false);
    }
}

/// Feeds a shard to a decoder, and adds the change of its statistics to `stats`.
fn feed(
    decoder: &mut FecDecoder,
    stats: &mut FecStats,
    now: Instant,
    shard: &[u8],
    recovered: impl FnMut(&[u8]) -> bool,
) {
    let before = decoder.stats();
    decoder.input(now, shard, recovered);
    *stats += decoder.stats() - before;
}

/// The conversation ids of the open connections of a listener, at any address: no RST without state reports
/// one of them as unknown.
///
/// A multiset in two tables: an id is hardly ever used twice, and a count for each would take memory.
#[derive(Debug, Default)]
pub(super) struct LiveConvs {
    ids: HashMap<u32, ()>,
    /// Further connections with an id, at other addresses.
    further: HashMap<u32, u32>,
}

impl LiveConvs {
    pub(super) fn insert(&mut self, conv: u32) {
        if self.ids.insert(conv, ()).is_some() {
            *self.further.entry(conv).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, conv: u32) {
        if let Entry::Occupied(mut further) = self.further.entry(conv) {
            *further.get_mut() -= 1;
            if *further.get() == 0 {
                further.remove();
                shrink_sparse(&mut self.further);
            }
        } else {
            self.ids.remove(&conv);
            shrink_sparse(&mut self.ids);
        }
    }

    pub(super) fn contains(&self, conv: u32) -> bool {
        self.ids.contains_key(&conv)
    }

    #[cfg(feature = "_testkit")]
    pub(super) fn len(&self) -> usize {
        let further: usize = self.further.values().map(|count| *count as usize).sum();
        self.ids.len() + further
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;
    use crate::config::Redundancy;
    use crate::core::connection::fec::FlowTiming;
    use crate::core::open::OpenedBy;
    use crate::core::segment::Command;
    use crate::core::seq::{Sn, Ts};
    use crate::fec::FecEncoder;
    use crate::shared::notifier::Notifier;

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
            withheld: false,
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

    /// Rules: W-92, P-52.
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

        let before = now + Duration::from_millis(59_999);
        assert_eq!(demux.route(before, &from(1), &first), Route::TimeWait);
        let later = now + Duration::from_secs(60);
        assert_eq!(demux.route(later, &from(1), &first), Route::Open(hash));
    }

    /// Rules: W-93, P-52.
    #[test]
    fn migration_to_the_address_of_another_connection_changes_nothing() {
        const OTHER: ConnId = ConnId { slot: 4, generation: 1 };
        let now = Instant::now();
        let mut demux = Demux::new(true);
        let keys = [1, 2, 3].map(|port| (from(port), 9));
        demux.insert(keys[0], ID);
        demux.insert(keys[1], OTHER);
        let data = datagram(Command::Push, 5, 0, b"x");
        let routes = |demux: &mut Demux| keys.map(|(from, _)| demux.route(now, &from, &data));
        let before = [Route::Existing(ID), Route::Existing(OTHER), Route::Unknown];
        assert_eq!(routes(&mut demux), before);
        // The live connection of that address, and another connection than the one that would move.
        for (from, to, id) in [(0, 1, ID), (0, 2, OTHER), (2, 1, ID)] {
            assert!(!demux.rekey(keys[from], keys[to], id));
            assert_eq!(routes(&mut demux), before);
        }
        demux.route(now, &keys[0].0, &data);
        assert!(demux.rekey(keys[0], keys[2], ID));
        let after = [Route::Unknown, Route::Existing(OTHER), Route::Existing(ID)];
        assert_eq!(routes(&mut demux), after);
        // Each still counts for its id.
        for (key, id, is_live) in [(keys[2], ID, true), (keys[1], OTHER, false)] {
            assert!(demux.forget(key, id));
            assert_eq!(demux.is_live(9), is_live);
        }
    }

    #[test]
    fn assigned_conv_depends_on_address_and_initial_segment_alone() {
        let of_conv = |conv: u32, ts: u32, payload: &[u8]| {
            let mut bytes = datagram(Command::Push, 0, 0, payload);
            bytes[..4].copy_from_slice(&conv.to_le_bytes());
            bytes[8..12].copy_from_slice(&ts.to_le_bytes());
            bytes
        };
        let assign = |port: u16, bytes: &[u8]| {
            let assigned = Demux::assign_conv(from(port), bytes).expect("an initial segment");
            // Of every segment; the rest stays.
            let conv = segment::conv_of(&assigned).unwrap();
            assert!(conv != 0 && segment::validate(&assigned, conv).is_ok());
            let mut restored = assigned;
            let mut at = 0;
            while at < restored.len() {
                restored[at..at + 4].fill(0);
                let len = restored[at + 20..at + 24].try_into().unwrap();
                at += HEADER_LEN + u32::from_le_bytes(len) as usize;
            }
            assert_eq!(restored, bytes);
            conv
        };
        let first = of_conv(0, 5, b"first");
        let conv = assign(1, &first);
        assert_eq!(assign(1, &of_conv(0, 700, b"first")), conv, "a retransmission");
        let mut two = first.clone();
        two.extend(of_conv(0, 5, b""));
        assert_eq!(assign(1, &two), conv, "with a further segment");
        assert_ne!(assign(2, &first), conv, "another address");
        assert_ne!(assign(1, &of_conv(0, 5, b"other")), conv, "another peer behind this address");

        let mut later = first.clone();
        later[12] = 1;
        let mut mixed = first.clone();
        mixed.extend(of_conv(8, 5, b""));
        for refused in [&later, &mixed, &first[..first.len() - 1].to_vec(), &of_conv(8, 5, b"x")] {
            assert_eq!(Demux::assign_conv(from(1), refused), None);
        }
    }

    #[test]
    fn time_wait_table_is_bounded_and_drops_the_oldest() {
        let mut demux = Demux::default();
        let now = Instant::now();
        for conv in 0..10_000 {
            demux.insert((from(1), conv), ID);
            demux.remove(now, (from(1), conv), ID, time_wait(OpenedBy::default(), 0));
        }
        assert_eq!(demux.ended.len(), 4_096);
        assert!(!demux.contains(&(from(1), 0)) && demux.contains(&(from(1), 9_999)));
    }

    #[test]
    fn opener_is_known_for_ten_seconds_after_its_last_attempt() {
        let (mut demux, now) = (Demux::default(), Instant::now());
        let key = (from(1), 9);
        demux.on_conv_in_use(now, key, false);
        let others = [(from(2), 9), (from(1), 8)];
        assert!(others.iter().all(|other| !demux.is_opener(now, other)));
        let [last, over] = [9_999, 10_001].map(Duration::from_millis);
        assert!(demux.is_opener(now + last, &key) && !demux.is_opener(now + over, &key));
        let again = now + Duration::from_secs(6);
        demux.on_conv_in_use(again, key, false);
        assert!(demux.is_opener(again + last, &key) && !demux.is_opener(again + over, &key));
        demux.expire(again + over);
        assert_eq!(demux.openers.len(), 0);
    }

    #[test]
    fn address_that_pings_is_no_opener_if_it_may_be_the_peer_of_the_connection() {
        let (now, key) = (Instant::now(), (addr(1), 7));
        let is_opener = |before: Option<bool>, later: Duration, after: Option<bool>| {
            let mut demux = Demux::new(true);
            if let Some(has_data) = before {
                demux.on_conv_in_use(now, key, has_data);
                assert!(demux.is_opener(now, &key));
            }
            demux.on_other_pinged(now + later, key, now + later);
            if let Some(has_data) = after {
                demux.on_conv_in_use(now + later, key, has_data);
            }
            demux.is_opener(now + later, &key)
        };
        let (soon, late) = (Duration::from_millis(900), Duration::from_millis(1_100));
        assert!(!is_opener(None, soon, None) && !is_opener(None, soon, Some(true)));
        assert!(!is_opener(Some(true), soon, None) && !is_opener(Some(true), soon, Some(true)));
        assert!(is_opener(Some(true), late, None), "the peer is still at the other address");
        assert!(is_opener(Some(false), soon, None), "a window probe is no first data");
        assert!(is_opener(None, soon, Some(false)));
    }

    #[test]
    fn table_of_openers_is_bounded_and_drops_the_oldest() {
        let (mut demux, now) = (Demux::default(), Instant::now());
        for conv in 0..3_000 {
            demux.on_conv_in_use(now, (from(1), conv), false);
        }
        assert_eq!(demux.openers.len(), 1_024);
        let known = |conv| demux.is_opener(now, &(from(1), conv));
        assert_eq!([0, 3_000 - 1_025, 3_000 - 1_024, 2_999].map(known), [false, false, true, true]);
    }

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn slots(peers: &PeerTable, port: u16) -> Vec<usize> {
        let mut slots: Vec<_> = peers.slots(addr(port)).collect();
        slots.sort_unstable();
        slots
    }

    #[test]
    fn slots_of_an_address_are_its_connections_only() {
        let mut peers = PeerTable::new(&Config::new(), 1);
        let mut memory = Memory::new(&Config::new(), Notifier::new().memory().clone());
        for slot in 0..6 {
            peers.join(addr(1 + slot % 2), u32::from(slot));
        }
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 2, 4], vec![1, 3, 5]));
        // Removes a middle, the first and the last link; then reuses their slots.
        peers.leave(addr(1), 2, &mut memory);
        peers.leave(addr(2), 5, &mut memory);
        peers.leave(addr(2), 1, &mut memory);
        assert_eq!((slots(&peers, 1), slots(&peers, 2)), (vec![0, 4], vec![3]));
        assert!(peers.has_several(addr(1)) && !peers.has_several(addr(2)));
        peers.join(addr(3), 2);
        peers.join(addr(1), 1);
        assert_eq!((slots(&peers, 1), slots(&peers, 3)), (vec![0, 1, 4], vec![2]));
        for (port, slot) in [(1, 4), (1, 0), (1, 1), (2, 3), (3, 2)] {
            assert!(peers.contains(addr(port)));
            peers.leave(addr(port), slot, &mut memory);
        }
        assert!(peers.is_empty());
    }

    #[test]
    fn next_connection_of_an_address_shares_the_path_of_the_newest_that_is_left() {
        let mut memory = Memory::new(&Config::new(), Notifier::new().memory().clone());
        for (gone, shared) in
            [(vec![], 2), (vec![0], 2), (vec![2], 1), (vec![1, 2], 0), (vec![2, 1], 0)]
        {
            let mut peers = PeerTable::new(&Config::new(), 1);
            for slot in 0..3 {
                peers.join(addr(1), slot);
                peers.join(addr(2), slot + 10);
                assert_eq!(peers.sharer(addr(1), slot), slot.checked_sub(1).map(|s| s as usize));
                assert_eq!(peers.sharer(addr(1), slot), None, "none shares its own");
            }
            for slot in &gone {
                peers.leave(addr(1), *slot, &mut memory);
            }
            peers.join(addr(1), 3);
            assert_eq!(peers.sharer(addr(1), 3), Some(shared), "without {gone:?}");
        }
        // A newer connection, which is not validated yet.
        let mut peers = PeerTable::new(&Config::new(), 1);
        peers.join(addr(1), 0);
        assert_eq!(peers.sharer(addr(1), 0), None);
        peers.join(addr(1), 1);
        peers.leave(addr(1), 0, &mut memory);
        peers.join(addr(1), 2);
        assert_eq!(peers.sharer(addr(1), 2), Some(1));
    }

    #[test]
    fn parity_of_an_address_counts_from_its_first_datagram_until_its_last_connection() {
        let fec = |data, parity| FecConfig::new(data, parity).unwrap();
        let config = Config::new().redundancy(Redundancy::Fec(fec(10, 3)));
        let mut peers = PeerTable::new(&config, 1);
        let mut memory = Memory::new(&config, Notifier::new().memory().clone());
        peers.join(addr(1), 0);
        peers.join(addr(1), 1);
        assert_eq!(memory.held(), 0, "idle");
        for _ in 0..2 {
            assert!(peers.fec_sender(addr(1), &mut memory).is_some());
            assert_eq!(memory.held(), 3 * KCP_GO_MTU_LIMIT);
        }
        peers.set_fec(addr(1), fec(10, 5), true, &mut memory);
        peers.validate(addr(1), &mut memory);
        assert_eq!((memory.held(), memory.unvalidated()), (5 * KCP_GO_MTU_LIMIT, 0));
        peers.leave(addr(1), 0, &mut memory);
        peers.leave(addr(1), 1, &mut memory);
        assert_eq!(memory.held(), 0);
    }

    /// Equal seqids would put packets of two encoders into one group at the peer.
    /// Rule: W-175.
    #[test]
    fn encoder_after_the_last_connection_of_an_address_starts_elsewhere() {
        let config = Config::new().redundancy(Redundancy::Fec(FecConfig::new(10, 3).unwrap()));
        let mut peers = PeerTable::new(&config, 1);
        let mut memory = Memory::new(&config, Notifier::new().memory().clone());
        let mut starts = Vec::new();
        for _ in 0..100 {
            peers.join(addr(1), 0);
            let sender = peers.fec_sender(addr(1), &mut memory).unwrap();
            let mut packet = [0; 100];
            sender.seal(Instant::now(), &FlowTiming::default(), &mut packet);
            starts.push(u32::from_le_bytes(packet[..4].try_into().unwrap()));
            peers.leave(addr(1), 0, &mut memory);
        }
        assert!(starts.iter().all(|start| start % 13 == 0 && *start < 1 << 30), "{starts:?}");
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[1] - pair[0] > 64 * 13), "{starts:?}");
    }

    #[test]
    fn decoder_of_an_address_counts_until_it_is_above_its_quota_or_the_last_connection_is_gone() {
        const LEN: usize = 1_000;
        let now = Instant::now();
        let config = Config::new().redundancy(Redundancy::Fec(FecConfig::new(10, 3).unwrap()));
        let mut encoder = FecEncoder::new(FecConfig::new(10, 3).unwrap());
        let mut shard = || {
            let mut shard = vec![7; LEN];
            encoder.seal(now, &mut shard);
            shard
        };
        for is_validated in [false, true] {
            let mut peers = PeerTable::new(&config, 1);
            let mut memory = Memory::new(&config, Notifier::new().memory().clone());
            peers.join(addr(1), 0);
            let holder = if is_validated {
                peers.validate(addr(1), &mut memory);
                Holder::Validated
            } else {
                Holder::Unvalidated
            };
            let mut decode = |peers: &mut PeerTable, memory: &mut Memory| {
                assert!(peers.decode(now, addr(1), &shard(), memory, |_| false));
                let unvalidated = if is_validated { 0 } else { memory.held() };
                assert_eq!(memory.unvalidated(), unvalidated);
                (memory.held(), peers.stats_of(addr(1)).is_some())
            };
            let mut held = 0;
            for _ in 0..5 {
                let (more, has_decoder) = decode(&mut peers, &mut memory);
                assert!(more >= held + LEN && has_decoder);
                held = more;
            }
            // Other connections take all, then give it back.
            let full = config.limits.memory;
            memory.update(holder, 0, full);
            assert!(held + 2 * LEN > memory.quota(holder));
            assert_eq!(decode(&mut peers, &mut memory), (full, false));
            memory.update(holder, full, 0);
            let (held, has_decoder) = decode(&mut peers, &mut memory);
            assert!((LEN..2 * LEN).contains(&held) && has_decoder);
            peers.leave(addr(1), 0, &mut memory);
            assert_eq!((memory.held(), memory.unvalidated(), peers.decoders), (0, 0, 0));
            assert_eq!(peers.stats().data_shards, 6);
        }
    }

    #[test]
    fn id_lives_until_the_last_of_its_connections_is_gone() {
        let mut live = LiveConvs::default();
        [7, 7, 8, 7].into_iter().for_each(|conv| live.insert(conv));
        for (removed, seven, eight) in [(7, true, true), (8, true, false), (7, true, false)] {
            live.remove(removed);
            assert_eq!((live.contains(7), live.contains(8)), (seven, eight));
        }
        live.remove(7);
        assert!(!live.contains(7) && live.ids.is_empty() && live.further.is_empty());
    }
}
