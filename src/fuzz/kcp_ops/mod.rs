//! A pair of state machines under any sequence of operations: every method of [`Kcp`] outside `core`.

mod applications;
mod network;
mod observe;
mod operations;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Choices;
use super::choices::CONFIG;
use crate::config::Mode;
use crate::core::connection::{Kcp, Seed};
use crate::core::path::set::PathId;
use crate::core::segment::HEADER_LEN;
use crate::core::seq::{Sn, Ts};
use crate::error::ConnectionError;
use crate::util::Framing;

/// Bytes of the settings and of an operation, for mutations.
pub const KCP_OPS: (usize, usize) = (SETTINGS, OPERATION);
/// Bytes of the settings: of the pair, and of each side with its seed.
const SETTINGS: usize = PAIR + 2 * (CONFIG + 8);
const PAIR: usize = 12;
/// Bytes of an operation.
const OPERATION: usize = 8;
/// Operations per input, and datagrams that the network holds in each direction.
const STEPS: usize = 2_000;
const WIRE: usize = 64;
/// Rounds until a healed network must have delivered everything.
const HEAL: usize = 50_000;
const CONV: u32 = 7;
/// The side that opens the connection, and the only one that adds paths.
const OPENER: usize = 0;

/// No network holds a datagram for longer: later ones look as if another process had sent them.
const MAX_AGE: Duration = Duration::from_secs(1_800);

/// Least difference between the clocks of both sides, milliseconds. They are random, and a side takes the peer's FIN for
/// its own, reflected, if its timestamp is one of a FIN of this side.
const MIN_APART: u32 = 1 << 30;

/// An endpoint gives up a peer that is not validated by then (`Limits::validation_timeout`). Data of the peer opens
/// another connection.
const VALIDATION: Duration = Duration::from_secs(30);

/// A datagram on its way.
#[derive(Clone, Debug)]
struct Datagram {
    path: PathId,
    bytes: Vec<u8>,
}

/// One side, and the datagrams on their way to it.
struct Side {
    kcp: Kcp,
    wire: VecDeque<Datagram>,
    /// Paths to this side on which everything is lost.
    cut: u8,
    /// Bytes written and read.
    written: usize,
    read: usize,
    /// Bytes sent and received before the peer was validated.
    unvalidated: (usize, usize),
    has_closed: bool,
}

/// Operations that may end a connection. An input has a random part of them: most connections
/// would not live long under all.
#[derive(Clone, Copy, Debug)]
struct Endings(u8);

struct Pair {
    sides: [Side; 2],
    /// Only datagrams of the two sides are on the wire.
    honest: bool,
    mode: Mode,
    now: Instant,
    /// When the network last lost all datagrams, since some may be too old.
    aged: Instant,
    /// An idle or dead-peer timeout may end a connection.
    mortal: bool,
    endings: Endings,
    /// An operation was applied that may end a connection.
    may_end: bool,
    /// A datagram was delivered that the other side never sent: received bytes are undefined.
    tainted: bool,
    setup: Setup,
    /// Buffers of delivered datagrams.
    spare: Vec<Vec<u8>>,
}

/// Settings of the pair that both sides know.
#[derive(Clone, Copy, Debug)]
struct Setup {
    /// Bytes of the cipher and of the FEC header.
    overhead: (u16, u16),
    /// Datagrams that follow the first of a GSO batch, and their framing.
    batch: usize,
    framing: Framing,
    paths: Paths,
    /// Bytes that the accepting side may send before the peer is validated; `None`: no limit.
    allowance: Option<usize>,
    /// The accepting side has no application before that.
    defers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paths {
    One,
    Standby,
    Duplicate,
    Aggregate,
}

/// Any operations on a pair of state machines and the network between them. Returns their number.
///
/// # Panics
///
/// If an invariant does not hold, other bytes arrive than were sent, or bytes do not arrive
/// although the network works again.
pub fn kcp_ops(data: &[u8]) -> usize {
    let (mut choices, operations) = Choices::split(data, SETTINGS, OPERATION);
    let mut pair = Pair::new(&mut choices);
    // A deep check takes longer than an operation.
    let every = choices.pick(&[64, 64, 16, 1]);
    let mut count = 0;
    for mut operation in operations.take(STEPS) {
        count += 1;
        pair.apply(&mut operation);
        if count % every == 0 {
            pair.observe();
        }
    }
    pair.observe();
    if !pair.tainted {
        pair.heal();
    }
    count
}

impl Pair {
    #[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
    fn new(choices: &mut Choices<'_>) -> Self {
        let now = Instant::now();
        let sn = Sn(choices.pick(&[0, u32::MAX - 3, 1 << 31, (1 << 31) - 2]));
        let honest = choices.byte() & 1 == 0;
        let mode = choices.pick(&[Mode::Stream, Mode::Message]);
        let mortal = choices.byte() & 3 == 0;
        let endings = choices.byte() & choices.byte();
        // A restarted side begins at 0.
        let endings = Endings(if sn == Sn(0) { endings } else { endings & !Endings::RESTART });
        let mut setup = Setup::draw(choices);
        // An initial segment has number 0.
        setup.allowance = setup.allowance.filter(|_| sn == Sn(0));
        setup.defers &= setup.allowance.is_some();
        let mut is_capable = true;
        let mut earlier = None;
        let mut side = || {
            let config = choices.config(mode, mortal);
            is_capable &= config.close_notify;
            let mut epoch = choices.word();
            if earlier.is_some_and(|earlier| Ts(epoch).since(earlier).unsigned_abs() < MIN_APART) {
                epoch ^= 1 << 31;
            }
            earlier = Some(Ts(epoch));
            let seed = Seed::new(epoch, u64::from(choices.word()));
            let kcp = match Kcp::with_config(CONV, &config, now, seed) {
                Ok(kcp) if sn == Sn(0) => kcp,
                _ => Kcp::starting_at(CONV, &config, now, seed, sn),
            };
            Side::new(kcp)
        };
        let (mut sides, spare) = ([side(), side()], Vec::new());
        for (index, side) in sides.iter_mut().enumerate() {
            setup.prepare(&mut side.kcp, index, now);
        }
        let (may_end, tainted) = (false, false);
        let mut pair = Self {
            sides,
            honest,
            mode,
            now,
            aged: now,
            mortal,
            endings,
            may_end,
            tainted,
            setup,
            spare,
        };
        if setup.allowance.is_some() {
            pair.begin(is_capable);
        }
        pair
    }

    /// The segment arrives for which the accepting side exists: a window probe with the CONTROL
    /// capability, or data.
    fn begin(&mut self, is_capable: bool) {
        if is_capable {
            self.sides[OPENER].kcp.open(self.now);
            self.sides[1 - OPENER].kcp.expect_capable_acks();
        } else {
            self.write(OPENER, 1, false);
            self.sides[OPENER].kcp.flush();
        }
        self.transmit(OPENER);
        self.deliver(1 - OPENER, 1);
    }

    /// Applies an operation, and sends what is due unless the caller is busy.
    fn apply(&mut self, choices: &mut Choices<'_>) {
        let choice = choices.byte();
        self.operate(usize::from(choice >> 7), choice & 63, choices);
        if choice & 64 == 0 {
            self.flush();
        }
        self.check();
    }

    /// Checks that everything arrives once the network works again and memory is free.
    fn heal(&mut self) {
        let mut mute_since = None;
        for side in &mut self.sides {
            side.kcp.limit_recv_memory(usize::MAX, false);
            side.cut = 0;
        }
        for round in 0..HEAL {
            self.flush();
            for to in 0..2 {
                self.deliver(to, usize::MAX);
                self.recv(to, usize::MAX);
                // The peer would wait for ever.
                if self.sides[to].kcp.has_discarded_data() {
                    self.sides[to].kcp.abort(self.now);
                }
            }
            self.check();
            if round % 64 == 0 {
                self.observe();
            }
            if self.sides.iter().any(|side| side.kcp.close_reason().is_some()) {
                return;
            }
            if !self.is_mute() {
                mute_since = None;
            } else if self.now >= *mute_since.get_or_insert(self.now) + VALIDATION {
                return;
            }
            if self.sides.iter().all(Side::is_done) {
                assert!((0..2).all(|to| self.sides[to].read == self.sides[1 - to].written));
                return;
            }
            self.flush();
            if self.sides.iter().any(|side| !side.wire.is_empty()) {
                continue;
            }
            let timers = self.sides.iter().filter_map(|side| side.kcp.poll_timeout());
            let next = timers.min().expect("what is not delivered has a timer");
            self.pass((self.now + Duration::from_micros(100)).max(next));
        }
        panic!("not everything arrives though the network works");
    }

    /// Whether the accepting side may send nothing. Its pings are lost, data refills no budget, and the opener sends no
    /// initial segment after data.
    fn is_mute(&self) -> bool {
        let kcp = &self.sides[1 - OPENER].kcp;
        self.setup.allowance == Some(0) && !kcp.send_budget().admits(HEADER_LEN)
    }

    /// Whether this side has no application, and no datagram of it acknowledges anything.
    fn is_deferred(&self, side: usize) -> bool {
        self.setup.defers && side != OPENER
    }

    /// Time passes until `now`.
    fn pass(&mut self, now: Instant) {
        self.now = now;
        if now > self.aged + MAX_AGE {
            self.sides.iter_mut().for_each(|side| side.wire.clear());
            self.aged = now;
        }
        self.sides.iter_mut().for_each(|side| side.kcp.handle_timeout(now));
    }

    /// Checks the ends of both sides, and that acknowledged data has arrived.
    fn check(&self) {
        for (side, other) in [(&self.sides[0], &self.sides[1]), (&self.sides[1], &self.sides[0])] {
            let ended = side.kcp.close_reason();
            let timed_out =
                matches!(ended, Some(ConnectionError::DeadPeer(_) | ConnectionError::IdleTimeout));
            let may = self.tainted || self.may_end || ended.is_none() || (self.mortal && timed_out);
            assert!(may, "it ended with {ended:?}");
            let is_acked = side.kcp.una().since(other.kcp.rcv_nxt()) <= 0;
            assert!(self.tainted || is_acked, "acknowledged before it arrived");
        }
    }
}

impl Side {
    fn new(kcp: Kcp) -> Self {
        let (cut, written, read) = (0, 0, 0);
        let (unvalidated, has_closed) = ((0, 0), false);
        Self { kcp, wire: VecDeque::new(), cut, written, read, unvalidated, has_closed }
    }

    /// Whether everything has arrived at the peer, the end of the stream too.
    fn is_done(&self) -> bool {
        self.kcp.is_drained() && (!self.has_closed || self.kcp.is_closed())
    }
}

impl Setup {
    fn draw(choices: &mut Choices<'_>) -> Self {
        let overhead = choices.pick(&[(0, 0), (0, 0), (28, 0), (20, 6)]);
        let framing = choices.pick(&[(0, 0), (8, 16)]);
        let framing = Framing { header_len: framing.0, trailer_len: framing.1 };
        let batch = choices.pick(&[0, 0, 3, 60]);
        let choice = choices.byte();
        let defers = choice & 8 != 0;
        let paths = match choice & 7 {
            1 => Paths::Standby,
            2 => Paths::Duplicate,
            3 => Paths::Aggregate,
            _ => Paths::One,
        };
        let allowance = choices.pick(&[None, None, None, Some(1_400), Some(0)]);
        Self { overhead, batch, framing, paths, allowance, defers }
    }

    /// Calls that precede the first datagram.
    fn prepare(self, kcp: &mut Kcp, side: usize, now: Instant) {
        let (cipher, fec_header) = self.overhead;
        if kcp.set_overhead(cipher, fec_header).is_err() {
            assert!(usize::from(kcp.max_mtu()) < 25 + usize::from(cipher + fec_header));
        }
        match self.paths {
            Paths::One => {}
            Paths::Standby => kcp.accept_paths(),
            Paths::Duplicate => {
                kcp.accept_paths();
                kcp.copy_on_paths();
            }
            Paths::Aggregate => {
                kcp.accept_paths();
                kcp.aggregate_paths();
            }
        }
        if self.paths != Paths::One && side == OPENER {
            kcp.ask_for_paths();
        }
        if let Some(allowance) = self.allowance.filter(|_| side != OPENER) {
            kcp.require_validation(now, allowance);
            if self.defers {
                kcp.defer_accept();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    fn sources(folder: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let entries = std::fs::read_dir(&folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
        paths.map(|path| std::fs::read_to_string(path).unwrap()).collect()
    }

    /// Names of the methods that `impl Kcp` blocks of `text` offer to other modules.
    fn methods(text: &str) -> BTreeSet<&str> {
        let blocks = text.split("\nimpl Kcp {\n").skip(1);
        let blocks = blocks.map(|block| block.split("\n}\n").next().unwrap());
        let offered = ["    pub fn ", "    pub const fn ", "    pub(crate) fn "];
        blocks
            .flat_map(str::lines)
            .filter_map(|line| offered.iter().find_map(|start| line.strip_prefix(start)))
            .filter_map(|rest| rest.split(['(', '<']).next())
            .collect()
    }

    #[test]
    fn every_method_of_kcp_is_an_operation() {
        let core = sources("src/core/connection");
        let methods = methods(&core);
        assert!(methods.len() > 100, "{methods:?}");
        let operations = sources("src/fuzz/kcp_ops");
        let is_driven = |name: &str| {
            let calls = [format!("kcp.{name}("), format!("Kcp::{name}(")];
            calls.iter().any(|call| operations.contains(call))
        };
        let missing: Vec<_> = methods.iter().filter(|name| !is_driven(name)).collect();
        assert!(missing.is_empty(), "no operation calls {missing:?}");
    }
}
