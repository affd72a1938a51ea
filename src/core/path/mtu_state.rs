//! The states of path MTU discovery (RFC 8899 5.2); transitions are in `mtu.rs`.

use crate::core::clock::Micros;
use crate::core::seq::{Sn, Ts};

/// The states of RFC 8899 5.2.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing to search: the configured size is at most MIN_PLPMTU. Entered and left when the
    /// configured size or the overhead changes.
    Disabled(Option<Box<Reduced>>),
    /// No black hole is suspected. The PLPMTU is the configured size (`None`) or a reduced one; at
    /// construction the smaller of configured size and BASE_PLPMTU. Entered on an acknowledged MTU
    /// probe, on an ACK of a full segment in `Base`, and when a raise finds nothing. Left to `Base`
    /// on BLACK_HOLE_THRESHOLD lost full segments, to `SearchingUp` on `raise_at` with new data.
    SearchComplete(Option<Box<Reduced>>),
    /// Confirms the peer with pings and the current size with MTU probes (RFC 8899 BASE). Entered
    /// on suspicion of a black hole. Left to `SearchComplete` on an ACK of an MTU probe or a full
    /// segment, to `SearchingDown` or `Error` on MAX_PROBES lost probes.
    Base(Box<Base>),
    /// Probes the next smaller size of the table while segments are cut for MIN_PLPMTU. Entered
    /// on a black hole. Left to `SearchComplete` on an ACK of an MTU probe, to itself with the next
    /// size or to `Error` on MAX_PROBES lost probes.
    SearchingDown(Box<Search>),
    /// Probes the configured size and then smaller ones, MAX_PROBES times each. Entered on `raise_at` with
    /// new data. Left to `SearchComplete` on an ACK, to the state before when no probe is acked, and to
    /// `Base` on BLACK_HOLE_THRESHOLD lost full segments.
    SearchingUp(Box<Search>),
    /// The PLPMTU is MIN_PLPMTU (RFC 8899 ERROR). Entered when every larger size of the table is
    /// lost. Left to `SearchingUp` on `raise_at` with new data.
    Error(Box<Reduced>),
}

/// Data of `State::Base`; `reduced` as before the suspicion.
#[derive(Debug)]
pub(super) struct Base {
    pub(super) probing: Probing,
    pub(super) reduced: Option<Reduced>,
}

/// Data of `State::SearchingDown` and `State::SearchingUp`.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) probing: Probing,
    pub(super) reduced: Reduced,
}

/// A PLPMTU below the configured size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reduced {
    /// Bytes of a KCP datagram.
    pub(super) plpmtu: usize,
    /// When new data starts a probe of a larger size (PMTU_RAISE_TIMER).
    pub(super) raise_at: Micros,
    /// Segments that may exceed the path MTU: set on a black hole, cleared when all are
    /// acknowledged. Survives a change of state.
    pub(super) oversized: Option<Oversized>,
}

/// Segments in flight that were cut before the PLPMTU was reduced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Oversized {
    /// The number after the last oversized segment.
    pub(super) until: Sn,
    /// When SND.UNA last advanced.
    pub(super) last_progress: Micros,
}

/// The next step while a size is under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A ping is sent at `Probing::next`.
    PingDue,
    /// A ping waits for its pong and is retransmitted at `Probing::next`.
    PingSent,
    /// An MTU probe is sent at `Probing::next`.
    ProbeDue,
    /// An MTU probe waits for its ACK until `Probing::next` (PROBE_TIMER).
    ProbeSent,
}

/// A size under test. Below the current size pings and MTU probes alternate, so that a loss counts
/// only while the path works.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing {
    /// Bytes of a KCP datagram.
    pub(super) size: usize,
    /// Sequence number of all pings and MTU probes of this size.
    pub(super) sn: Sn,
    pub(super) stage: Stage,
    /// Cookie of the MTU probe; retransmissions keep it.
    pub(super) probe_ts: Option<Ts>,
    /// Pings sent in the latest round.
    pub(super) ping_count: u8,
    /// True from the timeout of an MTU probe to the pong that confirms its loss.
    pub(super) probe_timed_out: bool,
    /// Lost MTU probes of this size (PROBE_COUNT of RFC 8899 5.1.3); only confirmed losses in
    /// `Base` and `SearchingDown`.
    pub(super) probe_count: u8,
    /// When the next ping or MTU probe is sent.
    pub(super) next: Micros,
}

impl Probing {
    pub(super) fn new(stage: Stage, size: usize, sn: Sn, next: Micros) -> Self {
        Self {
            size,
            sn,
            stage,
            probe_ts: None,
            ping_count: 0,
            probe_timed_out: false,
            probe_count: 0,
            next,
        }
    }
}

/// The latest ping and MTU probe; kept across changes of state.
#[derive(Debug, Default)]
pub(super) struct LastProbes {
    /// Number, cookie and time of the latest ping.
    pub(super) ping: Option<(Sn, Ts, Micros)>,
    /// Time of the latest MTU probe.
    pub(super) mtu_probe_at: Option<Micros>,
}

impl State {
    pub(super) fn reduced(&self) -> Option<&Reduced> {
        match self {
            Self::Disabled(reduced) | Self::SearchComplete(reduced) => reduced.as_deref(),
            Self::Base(base) => base.reduced.as_ref(),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&search.reduced),
            Self::Error(reduced) => Some(reduced),
        }
    }

    pub(super) fn reduced_mut(&mut self) -> Option<&mut Reduced> {
        match self {
            Self::Disabled(reduced) | Self::SearchComplete(reduced) => reduced.as_deref_mut(),
            Self::Base(base) => base.reduced.as_mut(),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&mut search.reduced),
            Self::Error(reduced) => Some(reduced),
        }
    }

    pub(super) fn probing(&self) -> Option<&Probing> {
        match self {
            Self::Base(base) => Some(&base.probing),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&search.probing),
            Self::Disabled(_) | Self::SearchComplete(_) | Self::Error(_) => None,
        }
    }

    pub(super) fn probing_mut(&mut self) -> Option<&mut Probing> {
        match self {
            Self::Base(base) => Some(&mut base.probing),
            Self::SearchingDown(search) | Self::SearchingUp(search) => Some(&mut search.probing),
            Self::Disabled(_) | Self::SearchComplete(_) | Self::Error(_) => None,
        }
    }
}

impl Probing {
    /// PROBE_TIMER expired without an ACK of the MTU probe: a ping comes next.
    pub(super) fn on_probe_timeout(&mut self) {
        if self.stage == Stage::ProbeSent {
            (self.stage, self.probe_timed_out) = (Stage::PingDue, true);
        }
    }
}
