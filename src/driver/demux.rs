//! Which conversation a datagram belongs to, and what is remembered of those that ended.
//!
//! Conversations are known by address and conv together: a foreign conv from a known address never
//! touches the existing conversation. One that ended leaves a tombstone for a minute, so that a
//! late repetition of its first segment does not open a ghost, and repetitions of what it received
//! are still acknowledged: the peer may never have heard the last acknowledgement.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::core::open::InitialSegment;
use crate::core::segment::{
    self, CONTROL_CAPABLE, Command, ControlType, HEADER_LEN, Header, Segments,
};
use crate::core::seq::Sn;
use crate::shared::notifier::ConnId;

/// How long a tombstone stands, and how many at most.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(60);
const TOMBSTONES: usize = 4_096;
/// Numbers behind the end of a conversation that its tombstone still acknowledges.
const REPEATED: u32 = 65_535;

/// A conversation's name on the wire.
pub(crate) type Key = (SocketAddr, u32);

/// What a datagram opens a conversation with, by hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Opening {
    /// The first data.
    Data(u64),
    /// A question before there is any.
    Asks(u64),
}

/// What opened a conversation; nothing if it was opened from here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenedBy {
    data: Option<u64>,
    asks: Option<u64>,
}

impl OpenedBy {
    pub(crate) fn by(opening: Opening) -> Self {
        match opening {
            Opening::Data(hash) => Self { data: Some(hash), asks: None },
            Opening::Asks(hash) => Self { data: None, asks: Some(hash) },
        }
    }

    /// The other half of an opening: the first data after a question, or a question that its first
    /// data has overtaken.
    pub(crate) fn add(&mut self, opening: Opening) {
        match opening {
            Opening::Data(hash) => self.data.get_or_insert(hash),
            Opening::Asks(hash) => self.asks.get_or_insert(hash),
        };
    }

    /// Whether this may be a question that data has overtaken.
    pub(crate) fn was_overtaken(&self, opening: Opening) -> bool {
        matches!(opening, Opening::Asks(_)) && self.data.is_some() && self.asks.is_none()
    }

    pub(crate) fn contains(&self, opening: Opening) -> bool {
        match opening {
            Opening::Data(hash) => self.data == Some(hash),
            Opening::Asks(hash) => self.asks == Some(hash),
        }
    }

    /// Whether it was opened without data, and none has come.
    fn awaits_data(&self) -> bool {
        self.asks.is_some() && self.data.is_none()
    }

    /// Whether a peer opened it.
    pub(crate) fn is_by_peer(&self) -> bool {
        self.data.is_some() || self.asks.is_some()
    }
}

/// What is remembered of a conversation that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub(crate) openings: OpenedBy,
    /// The next number it would have received, and the oldest that the peer had not acknowledged.
    pub(crate) nxt: Sn,
    pub(crate) una: Sn,
    /// The peer understands notices of an end.
    pub(crate) supports_control: bool,
    /// The peer may go on as if nothing had happened: it is to be told then.
    pub(crate) reset_on_data: bool,
}

/// Where a datagram goes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Existing(ConnId),
    /// A well-formed opening by someone unknown, with its hash.
    Open(Opening),
    /// For a conversation that ended, which answers this.
    Answer(Header),
    Closed,
    Unknown,
    Malformed,
    Short,
}

#[derive(Debug, Default)]
pub(crate) struct Demux {
    live: HashMap<Key, ConnId>,
    /// Those that may move, by conversation id alone: as a rule one each.
    migratable: HashMap<u32, Vec<ConnId>>,
    /// The last one found: datagrams come in trains.
    recent: Option<(Key, ConnId)>,
    ended: HashMap<Key, (Instant, TimeWait)>,
    /// In order of expiry. An entry whose time differs from the map's was replaced.
    expiry: VecDeque<(Instant, Key)>,
    hasher: RandomState,
}

impl Demux {
    /// Finds the conversation of `datagram`, or what else to do with it.
    pub(crate) fn route(&mut self, now: Instant, from: &SocketAddr, datagram: &[u8]) -> Route {
        let Some(conv) = datagram.first_chunk().map(|conv| u32::from_le_bytes(*conv)) else {
            return Route::Short;
        };
        if datagram.len() < HEADER_LEN {
            return Route::Short;
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
        let opening = self.opening(datagram);
        self.expire(now);
        if let (Some((_, tombstone)), Some(opening)) = (self.ended.get_mut(&key), opening)
            && tombstone.openings.was_overtaken(opening)
        {
            tombstone.openings.add(opening);
            return Route::Closed;
        }
        match (self.ended.get(&key), opening) {
            // It ended before its first data came: this is no other conversation.
            (Some((_, tombstone)), Some(Opening::Data(_))) if tombstone.openings.awaits_data() => {
                tombstone.answer(datagram).map_or(Route::Closed, Route::Answer)
            }
            (Some((_, tombstone)), Some(hash)) if !tombstone.openings.contains(hash) => {
                // A peer whose opening we never saw may only repeat what we acknowledged.
                if tombstone.openings.is_by_peer() { Route::Open(hash) } else { Route::Closed }
            }
            // The opening again, with data behind it acknowledged long ago: a peer that starts anew
            // with the same words. Silence lets it open once the tombstone is gone.
            (Some((_, tombstone)), Some(_)) if tombstone.nxt != Sn(1) => Route::Closed,
            (Some((_, tombstone)), _) => {
                tombstone.answer(datagram).map_or(Route::Closed, Route::Answer)
            }
            (None, Some(hash)) => Route::Open(hash),
            (None, None) => Route::Unknown,
        }
    }

    /// The hash of what `datagram` would open a conversation with, if it would.
    pub(crate) fn opening(&self, datagram: &[u8]) -> Option<Opening> {
        let first = crate::core::open::first(datagram)?;
        let hash = self.hasher.hash_one(first);
        Some(match first {
            InitialSegment::Data(_) => Opening::Data(hash),
            InitialSegment::Asks(_) => Opening::Asks(hash),
        })
    }

    /// An opening under id 0, with another id in its place: always the same one for the same data
    /// from the same address, so that a repetition belongs to the same conversation. The id is as
    /// hard to guess as a random one.
    pub(crate) fn assign(&self, from: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        segment::validate(datagram, 0).ok()?;
        let opening = self.opening(datagram)?;
        let [a, b, c, d, ..] = self.hasher.hash_one((from, opening)).to_le_bytes();
        let conv = u32::from_le_bytes([a, b, c, d]).max(1);
        let mut assigned = Vec::with_capacity(datagram.len());
        for (header, payload) in Segments::new(datagram) {
            Header { conv, ..header }.emit(&mut assigned);
            assigned.extend_from_slice(payload);
        }
        Some(assigned)
    }

    /// From now on this conversation may turn up at another address.
    pub(crate) fn make_movable(&mut self, conv: u32, id: ConnId) {
        self.migratable.entry(conv).or_default().push(id);
    }

    /// The conversation of that id which may have moved here, if there is just one.
    pub(crate) fn migratable(&self, conv: u32) -> Option<ConnId> {
        match self.migratable.get(&conv)?.as_slice() {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// Gives a conversation another address. Returns whether that was free.
    pub(crate) fn rekey(&mut self, from: Key, to: Key, id: ConnId) -> bool {
        if self.live.contains_key(&to) || self.live.get(&from) != Some(&id) {
            return false;
        }
        self.live.remove(&from);
        self.recent = None;
        self.insert(to, id);
        true
    }

    /// The hash of the first data of a conversation, if it is in `datagram`: that of an opening
    /// with the same data.
    pub(crate) fn first_data(&self, datagram: &[u8]) -> Option<Opening> {
        crate::core::open::first_data(datagram)
            .map(|first| Opening::Data(self.hasher.hash_one(first)))
    }

    /// The conversation of that name, if it lives.
    pub(crate) fn find(&self, key: &Key) -> Option<ConnId> {
        self.live.get(key).copied()
    }

    pub(crate) fn insert(&mut self, key: Key, id: ConnId) {
        self.ended.remove(&key);
        self.live.insert(key, id);
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.live.contains_key(key) || self.ended.contains_key(key)
    }

    /// Ends a conversation, compared by identity: a successor under the same name stays.
    pub(crate) fn remove(&mut self, now: Instant, key: Key, id: ConnId, tombstone: TimeWait) {
        if self.live.get(&key) != Some(&id) {
            return;
        }
        self.live.remove(&key);
        self.recent = None;
        if let Some(movable) = self.migratable.get_mut(&key.1) {
            movable.retain(|known| *known != id);
            if movable.is_empty() {
                self.migratable.remove(&key.1);
            }
        }
        self.expire(now);
        if self.expiry.len() >= TOMBSTONES {
            self.drop_oldest();
        }
        let until = now + TOMBSTONE_LIFE;
        self.ended.insert(key, (until, tombstone));
        self.expiry.push_back((until, key));
    }

    /// Forgets what ended long enough ago.
    pub(crate) fn expire(&mut self, now: Instant) {
        while self.expiry.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((until, key)) = self.expiry.pop_front() else { return };
        if self.ended.get(&key).is_some_and(|(stands, _)| *stands == until) {
            self.ended.remove(&key);
        }
    }
}

impl TimeWait {
    /// What the ended conversation answers: an acknowledgement of the last data segment that it had
    /// received, with a closed window, since nobody will read more; or the end.
    fn answer(&self, datagram: &[u8]) -> Option<Header> {
        let (mut repeated, mut parting) = (None, None);
        for (header, _) in Segments::new(datagram) {
            match header.command {
                Command::Push if self.has_received(header.sn) => repeated = Some(header),
                Command::Push => parting = parting.or_else(|| self.reset(&header)),
                Command::Control => parting = parting.or_else(|| self.answer_fin_or_reset(&header)),
                Command::Ack | Command::WindowProbe | Command::WindowUpdate => {}
            }
        }
        let blank = |header| Header { wnd: 0, una: self.nxt, len: 0, ..header };
        let control = |(header, notice)| Header {
            command: Command::Control,
            frg: notice as u8,
            ..blank(header)
        };
        let ack = |header| Header { command: Command::Ack, frg: 0, ..blank(header) };
        parting.map(control).or_else(|| repeated.map(ack))
    }

    fn has_received(&self, sn: Sn) -> bool {
        self.nxt.offset_from(sn).is_some_and(|age| (1..=REPEATED).contains(&age))
    }

    /// More data, or a question whether somebody is there, of a peer that knows what we had sent.
    fn reset(&self, header: &Header) -> Option<(Header, ControlType)> {
        let known = header.una.offset_from(self.una).is_some_and(|ahead| ahead <= REPEATED);
        let understands =
            self.supports_control || (header.len == 0 && header.frg == CONTROL_CAPABLE);
        (understands && self.reset_on_data && known).then_some((*header, ControlType::Reset))
    }

    /// The peer's own end, whose answer was lost.
    fn answer_fin_or_reset(&self, header: &Header) -> Option<(Header, ControlType)> {
        let answer = match ControlType::from_frg(header.frg)? {
            ControlType::Fin if header.sn == self.nxt => ControlType::FinAck,
            ControlType::Reset => ControlType::ResetAck,
            _ => return None,
        };
        self.supports_control.then_some((*header, answer))
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;
    use crate::core::seq::Ts;

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

    #[test]
    fn only_a_first_data_segment_opens() {
        let mut demux = Demux::default();
        let now = Instant::now();
        let mut route = |bytes: &[u8]| demux.route(now, &from(1), bytes);
        assert!(matches!(route(&datagram(Command::Push, 0, 0, b"hi")), Route::Open(_)));
        assert_eq!(route(&datagram(Command::Push, 1, 0, b"hi")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Push, 0, 1, b"hi")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Ack, 0, 0, b"")), Route::Unknown);
        assert_eq!(route(&datagram(Command::WindowProbe, 0, 0, b"")), Route::Unknown);
        assert_eq!(route(&datagram(Command::Push, 0, 0, b"hi")[..25]), Route::Malformed);
        assert_eq!(route(b"short"), Route::Short);
    }

    #[test]
    fn another_conv_or_address_is_another_conversation() {
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
    fn a_tombstone_acknowledges_repetitions_and_lets_a_new_opening_pass() {
        let mut demux = Demux::default();
        let now = Instant::now();
        let first = datagram(Command::Push, 0, 0, b"first");
        let Route::Open(hash) = demux.route(now, &from(1), &first) else { panic!("opens") };
        demux.insert((from(1), 9), ID);
        let stranger = ConnId { slot: 3, generation: 2 };
        let tombstone = TimeWait {
            openings: OpenedBy::by(hash),
            nxt: Sn(4),
            una: Sn(0),
            supports_control: false,
            reset_on_data: true,
        };
        demux.remove(now, (from(1), 9), stranger, tombstone);
        assert_eq!(demux.route(now, &from(1), &first), Route::Existing(ID), "identity matters");
        demux.remove(now, (from(1), 9), ID, tombstone);

        let last = datagram(Command::Push, 3, 7, b"last");
        let Route::Answer(ack) = demux.route(now, &from(1), &last) else { panic!("acks") };
        assert_eq!((ack.command, ack.sn, ack.ts, ack.una), (Command::Ack, Sn(3), Ts(5), Sn(4)));
        assert_eq!(demux.route(now, &from(1), &first), Route::Closed, "it may start anew");
        let probe = datagram(Command::Push, 0_u32.wrapping_sub(1 << 30), 0, b"");
        assert_eq!(demux.route(now, &from(1), &probe), Route::Closed, "it is not alive");
        assert_eq!(demux.route(now, &from(1), &datagram(Command::Push, 4, 0, b"x")), Route::Closed);
        let second = datagram(Command::Push, 0, 0, b"second");
        assert!(matches!(demux.route(now, &from(1), &second), Route::Open(_)));

        let later = now + TOMBSTONE_LIFE;
        assert_eq!(demux.route(later, &from(1), &first), Route::Open(hash));
    }

    #[test]
    fn tombstones_are_bounded_and_the_oldest_goes_first() {
        let mut demux = Demux::default();
        let now = Instant::now();
        let tombstone = TimeWait {
            openings: OpenedBy::default(),
            nxt: Sn(0),
            una: Sn(0),
            supports_control: false,
            reset_on_data: false,
        };
        for conv in 0..10_000 {
            demux.insert((from(1), conv), ID);
            demux.remove(now, (from(1), conv), ID, tombstone);
        }
        assert_eq!((demux.ended.len(), demux.expiry.len()), (TOMBSTONES, TOMBSTONES));
        assert!(!demux.contains(&(from(1), 0)) && demux.contains(&(from(1), 9_999)));
    }
}
