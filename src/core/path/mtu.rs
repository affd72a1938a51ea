//! Whether the path carries datagrams of full size, where nobody says that it does not.
//!
//! A router that cannot pass a datagram on says so, but its word may be filtered: then whatever is
//! too large disappears (RFC 2923), while everything small arrives. Nothing is asked as long as
//! full segments are acknowledged. When they are repeated again and again and none arrives, the
//! peer is asked with an echo probe (see `liveness.rs`) whether it is there, and if it answers, with
//! a padded one: to any KCP peer that is a repetition of something old, whose payload it skips and
//! whose number and stamp it acknowledges. The stamp is a random cookie, so an answer proves that
//! this size arrived. Where small probes are answered and large ones are not, new segments are
//! cut smaller (RFC 8899 without its raising in small steps).
//!
//! Segments that exist keep their size: the peer may have received one whose acknowledgement was
//! lost, so its number cannot be given to other bytes. They need a path that passes fragments on,
//! which [`MtuDiscovery::needs_ip_fragmentation`] has the driver ask of the system.

use crate::core::clock::Micros;
use crate::core::keepalive::{COOKIE_LIFE, dataless_sn};
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};

/// Sizes of a KCP datagram in bytes that are tried below the configured one, and one that every
/// path carries. With 40 bytes of cipher and FEC they are 1,200, 1,000 and 508 bytes of UDP payload:
/// what fits IPv6's least MTU, what fits some tunnels in it, and what every IPv4 host takes.
const PLPMTU_TABLE: [usize; 2] = [1_160, 960];
const MIN_PLPMTU: usize = 468;
/// Repetitions of full segments, a time-out apart and with no acknowledgement of one between them,
/// that raise a doubt.
const BLACK_HOLE_THRESHOLD: u8 = 3;
/// Large probes in a row that must stay unanswered while small ones after them are answered.
const MAX_PROBES: u8 = 3;
/// Least time between large probes, and for an answer to either kind, microseconds.
const PROBE_TIMER: u64 = 1_000_000;
/// How often a path that carried less is asked for more, microseconds.
const PMTU_RAISE_TIMER: u64 = 60_000_000;
/// Numbers that a peer which has forgotten everything might take for new data.
const MIN_PROBE_SN: u32 = 1 << 16;

#[derive(Debug, Default)]
pub(crate) struct MtuDiscovery {
    /// Repetitions since a full segment arrived, when the last one counted, and the largest
    /// datagram among them in bytes.
    suspicious_loss_count: u8,
    sign_at: Micros,
    lost: usize,
    /// When the last large probe left.
    asked: Option<Micros>,
    /// The last small one, and when it was sent.
    small: Option<(Sn, Ts, Micros)>,
    search: Option<Box<Search>>,
    narrow: Option<Box<Narrow>>,
}

/// What a path is known not to carry.
#[derive(Clone, Copy, Debug)]
struct Narrow {
    /// What it carries, in bytes of a KCP datagram.
    limit: usize,
    raise_at: Micros,
    /// Segments before this number may have been cut too large, and none of them was acknowledged
    /// since.
    oversized_in_flight: Option<(Sn, Micros)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeGoal {
    /// Whether the size in use is carried at all.
    Doubt,
    /// What is, since it is not.
    Lower,
    /// Whether more is than before: one question for each size, which may as well be lost.
    Raise,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Small,
    Large,
}

/// A size that is being tried.
#[derive(Clone, Copy, Debug)]
struct Search {
    purpose: ProbeGoal,
    size: usize,
    stage: Stage,
    /// A probe of this stage has left.
    waits: bool,
    sn: Sn,
    large: Option<Ts>,
    /// Small ones sent in a row.
    tries: u8,
    /// A large one was not answered; it counts once a small one is.
    missed: bool,
    strikes: u8,
    /// When the next probe leaves.
    next: Micros,
}

/// A probe to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) sn: Sn,
    pub(crate) cookie: Ts,
    /// Bytes of the datagram.
    pub(crate) size: usize,
}

impl Search {
    pub(crate) fn new(purpose: ProbeGoal, size: usize, sn: Sn, next: Micros) -> Self {
        let stage = if purpose == ProbeGoal::Doubt { Stage::Small } else { Stage::Large };
        Self {
            purpose,
            size,
            stage,
            waits: false,
            sn,
            large: None,
            tries: 0,
            missed: false,
            strikes: 0,
            next,
        }
    }
}

impl MtuDiscovery {
    /// What the path is known to carry, in bytes of a KCP datagram, if that is less than asked for.
    pub(crate) fn limit(&self) -> usize {
        self.narrow.as_ref().map_or(usize::MAX, |narrow| narrow.limit)
    }

    /// Whether it matters what arrives.
    pub(crate) fn is_watching(&self) -> bool {
        self.suspicious_loss_count > 0
    }

    /// A segment is repeated, in a datagram of `size` bytes where `mtu` are allowed.
    pub(crate) fn on_segment_lost(
        &mut self,
        now: Micros,
        (size, mtu): (usize, usize),
        rto: u64,
        una: Sn,
    ) {
        // A larger one was cut before the path was known.
        if self.search.is_some() || size <= MIN_PLPMTU || size > mtu {
            return;
        }
        if self.suspicious_loss_count > 0 && now.since(self.sign_at) < rto {
            return;
        }
        (self.suspicious_loss_count, self.sign_at) = (self.suspicious_loss_count + 1, now);
        self.lost = self.lost.max(size);
        if self.suspicious_loss_count >= BLACK_HOLE_THRESHOLD {
            self.search =
                Some(Box::new(Search::new(ProbeGoal::Doubt, mtu, mtu_probe_sn(una), now)));
        }
    }

    /// A segment arrived that left in a datagram of `size` bytes.
    pub(crate) fn on_segment_acked(&mut self, size: usize) {
        if self.suspicious_loss_count > 0 && size >= self.lost {
            self.reset_black_hole_detector();
        }
    }

    /// The cumulative acknowledgement has moved to `una`.
    pub(crate) fn on_una(&mut self, now: Micros, una: Sn) {
        if let Some(narrow) = &mut self.narrow {
            let stranded = narrow.oversized_in_flight.filter(|(until, _)| until.since(una) > 0);
            narrow.oversized_in_flight = stranded.map(|(until, _)| (until, now));
        }
    }

    /// Datagrams have another size from now on, so what was found out about the old one is void.
    pub(crate) fn on_resized(&mut self) {
        self.reset_black_hole_detector();
        self.search = None;
    }

    pub(crate) fn reset_black_hole_detector(&mut self) {
        (self.suspicious_loss_count, self.lost) = (0, 0);
        self.search.take_if(|search| search.purpose == ProbeGoal::Doubt);
    }

    /// New data leaves in datagrams of up to `mtu` bytes if the path lets it: it is time to ask for
    /// more now and then.
    pub(crate) fn raise(&mut self, now: Micros, mtu: usize, una: Sn) {
        let Some(narrow) = &mut self.narrow else { return };
        let rests = self.search.is_none() && narrow.oversized_in_flight.is_none();
        if rests && now >= narrow.raise_at && narrow.limit < mtu {
            narrow.raise_at = now.add_micros(PMTU_RAISE_TIMER);
            self.search =
                Some(Box::new(Search::new(ProbeGoal::Raise, mtu, mtu_probe_sn(una), now)));
        }
    }

    /// When the next probe leaves.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        self.search.as_ref().map(|search| search.next)
    }

    /// Since when segments that were cut too large have made no progress.
    pub(crate) fn stranded_since(&self) -> Option<Micros> {
        self.narrow.as_ref()?.oversized_in_flight.map(|(_, since)| since)
    }

    /// Whether routers should be allowed to cut datagrams into fragments: there are segments too
    /// large for the path, or a peer that proved nothing may not even have received the first one.
    /// Not while sizes are tried: those would arrive in fragments as well.
    pub(crate) fn needs_ip_fragmentation(&self, validated: bool) -> bool {
        match &self.search {
            Some(search) => !validated && search.tries > 1,
            None => self.stranded_since().is_some(),
        }
    }

    /// The probe that is due, if any.
    pub(crate) fn take_probe(
        &mut self,
        now: Micros,
        rto: u64,
        cookie: impl FnOnce() -> Ts,
    ) -> Option<Probe> {
        let search = self.search.as_mut().filter(|search| now >= search.next)?;
        if search.waits && search.stage == Stage::Large {
            if search.purpose == ProbeGoal::Raise {
                let limit = self.narrow.as_ref().map_or(MIN_PLPMTU, |narrow| narrow.limit);
                let next =
                    PLPMTU_TABLE.into_iter().find(|size| (limit + 1..search.size).contains(size));
                let Some(size) = next else {
                    self.search = None;
                    return None;
                };
                (search.size, search.large) = (size, None);
            } else {
                (search.stage, search.missed, search.waits) = (Stage::Small, true, false);
            }
        }
        let wait = PROBE_TIMER.max(2 * rto);
        let (sn, size) = (search.sn, search.size);
        match search.stage {
            Stage::Small => {
                let known = self.small.filter(|_| search.waits).map(|(_, known, _)| known);
                let cookie = known.unwrap_or_else(cookie);
                self.small = Some((sn, cookie, now));
                search.tries = if search.waits { search.tries } else { 0 };
                search.waits = true;
                search.next = now.add_micros(wait << search.tries.min(3));
                search.tries = search.tries.saturating_add(1);
                Some(Probe { sn, cookie, size: HEADER_LEN })
            }
            Stage::Large => {
                (search.waits, search.next) = (true, now.add_micros(wait));
                self.asked = Some(now);
                Some(Probe { sn, cookie: *search.large.get_or_insert_with(cookie), size })
            }
        }
    }

    /// Whether a small probe of that number and cookie was sent a short time ago, answered or not.
    pub(crate) fn has_asked(&self, now: Micros, asked: (Sn, Ts)) -> bool {
        let fresh = |sent: Micros| now.since(sent) <= COOKIE_LIFE;
        self.small.is_some_and(|(sn, cookie, sent)| (sn, cookie) == asked && fresh(sent))
    }

    /// Whether an acknowledgement answers a probe. `nxt` is the number of the next new segment,
    /// `mtu` the largest datagram that is wanted.
    pub(crate) fn on_answer(
        &mut self,
        now: Micros,
        (sn, ts): (Sn, Ts),
        nxt: Sn,
        mtu: usize,
    ) -> bool {
        let Some(search) = self.search.as_mut().filter(|search| search.sn == sn) else {
            return false;
        };
        if search.large == Some(ts) {
            let (size, purpose) = (search.size, search.purpose);
            self.on_probe_acked(now, size, purpose, mtu);
            return true;
        }
        let asked = self.small.is_some_and(|(_, cookie, _)| cookie == ts);
        if search.stage != Stage::Small || !search.waits || !asked {
            return false;
        }
        search.strikes += u8::from(std::mem::take(&mut search.missed));
        if search.strikes >= MAX_PROBES {
            self.on_black_hole(now, nxt);
        } else {
            let earliest = self.asked.map_or(now, |asked| asked.add_micros(PROBE_TIMER));
            (search.stage, search.waits, search.next) = (Stage::Large, false, now.max(earliest));
        }
        true
    }

    pub(crate) fn on_probe_acked(
        &mut self,
        now: Micros,
        size: usize,
        purpose: ProbeGoal,
        mtu: usize,
    ) {
        self.reset_black_hole_detector();
        self.search = None;
        if size >= mtu {
            self.narrow = None;
        } else if let Some(narrow) = self.narrow.as_mut().filter(|_| purpose != ProbeGoal::Doubt) {
            (narrow.limit, narrow.raise_at) = (size, now.add_micros(PMTU_RAISE_TIMER));
        }
    }

    /// Until it is known what the path carries instead, segments are cut so that it carries them.
    pub(crate) fn on_black_hole(&mut self, now: Micros, nxt: Sn) {
        let Some(search) = self.search.take() else { return };
        self.reset_black_hole_detector();
        let raise_at = now.add_micros(PMTU_RAISE_TIMER);
        let known = self.narrow.take().and_then(|narrow| narrow.oversized_in_flight);
        let doubt = search.purpose == ProbeGoal::Doubt;
        let stranded = if doubt { Some((nxt, now)) } else { known };
        self.narrow =
            Some(Box::new(Narrow { limit: MIN_PLPMTU, raise_at, oversized_in_flight: stranded }));
        if let Some(size) = PLPMTU_TABLE.into_iter().find(|size| *size < search.size) {
            self.search = Some(Box::new(Search::new(ProbeGoal::Lower, size, search.sn, now)));
        }
    }
}

/// As [`dataless_sn`], and nothing that a peer which has forgotten everything would store.
fn mtu_probe_sn(una: Sn) -> Sn {
    match dataless_sn(una) {
        Sn(sn) if sn < MIN_PROBE_SN => Sn(u32::MAX),
        sn => sn,
    }
}
