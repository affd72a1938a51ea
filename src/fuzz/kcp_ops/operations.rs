//! The operations, by number.

use std::time::Duration;

use super::{CONV, Datagram, Endings, OPENER, Pair, Paths, Side};
use crate::config::{Config, KeepaliveSide};
use crate::core::connection::fec::ClosedGroup;
use crate::core::connection::{Kcp, PacketType, Seed};
use crate::core::path::set::{MAX_PATHS, PathId};
#[cfg(feature = "qlog")]
use crate::core::qlog::log::{RECORD_SEPARATOR, Title};
#[cfg(feature = "qlog")]
use crate::error::ConnectionError;
use crate::fuzz::Choices;
#[cfg(feature = "qlog")]
use crate::fuzz::wire::addr;

impl Endings {
    const CLOSE: u8 = 1;
    const ABORT: u8 = 2;
    const SHUT_READ: u8 = 4;
    const EXIT: u8 = 8;
    pub(super) const RESTART: u8 = 16;
    const SUSPECT: u8 = 32;

    fn has(self, ending: u8) -> bool {
        self.0 & ending != 0
    }
}

impl Pair {
    /// Applies operation `number`, below 64, to one side.
    pub(super) fn operate(&mut self, side: usize, number: u8, choices: &mut Choices<'_>) {
        match number {
            0..=7 => self.use_write_side(side, number, choices),
            8 | 9 => self.recv(side, usize::MAX),
            10 => self.recv(side, 1),
            11..=31 => self.use_network(side, number, choices),
            32..=37 => self.wait(side, number, choices),
            38..=41 => self.set(side, choices),
            42 => self.use_memory(side, choices),
            43 => self.use_acks(side, choices),
            44 => self.use_keepalive(side, choices),
            45 => self.use_redundancy(side, choices),
            46 => self.use_fec(side, choices),
            47 => self.use_datagrams(side, choices),
            48 => self.meet_size(side, choices),
            49 => self.use_path(side, choices),
            50 | 51 => self.use_paths(side, choices),
            52 => self.open(side, choices),
            53 => self.validate(side, choices),
            54 | 55 => self.end(side, choices),
            56 => self.observe(),
            #[cfg(feature = "qlog")]
            57 => self.use_log(side, choices),
            _ => self.use_network(side, 11, choices),
        }
    }

    fn use_write_side(&mut self, side: usize, number: u8, choices: &mut Choices<'_>) {
        let kcp = &mut self.sides[side].kcp;
        let may_write = !self.sides[side].has_closed && kcp.close_reason().is_none();
        let (share, factor) = (choices.byte(), usize::from(choices.byte() % 16 + 1));
        match number {
            6 => self.sides[side].kcp.flush(),
            7 => self.sides[side].kcp.hurry(),
            _ if !may_write => {}
            0..=2 => self.write(side, usize::from(share) * factor, false),
            3 => self.write(side, usize::from(share) * factor, true),
            4 => self.message(side, share, false),
            _ => self.message(side, share, true),
        }
    }

    fn use_network(&mut self, side: usize, number: u8, choices: &mut Choices<'_>) {
        let amount = choices.byte();
        let wire = &mut self.sides[side].wire;
        match number {
            11..=16 => self.deliver(side, usize::from(amount % 8) + 1),
            17 => self.deliver(side, usize::MAX),
            18 | 19 => self.deliver_batch(side, usize::from(amount % 64) + 2),
            20 => drop(wire.pop_front()),
            21 => wire.clear(),
            22 => wire.extend(wire.front().cloned()),
            23 => {
                let place = usize::from(amount) % wire.len().max(1);
                if place < wire.len() {
                    wire.swap(0, place);
                }
            }
            24 => wire.rotate_left(1.min(wire.len())),
            25 => {
                if let Some(datagram) = wire.pop_front() {
                    self.arrive(side, &datagram, PacketType::Fec);
                }
            }
            26 => self.migrate(side, amount),
            27 if self.honest => self.splice(side),
            27 => self.reflect(side),
            28 | 29 if !self.honest => self.mutate(side, choices),
            30 if !self.honest => self.forge(side, choices),
            31 if !self.honest => self.raw(side, choices),
            _ => self.deliver(side, usize::from(amount % 8) + 1),
        }
    }

    /// Time passes, for all.
    fn wait(&mut self, side: usize, number: u8, choices: &mut Choices<'_>) {
        let (fine, coarse) = (choices.byte(), choices.byte());
        let time = match number {
            32 | 33 => Duration::from_millis(fine.into()),
            34 => Duration::from_micros(u64::from(fine) * 100),
            35 => {
                let next = self.sides[side].kcp.poll_timeout();
                next.map_or(Duration::ZERO, |next| next.saturating_duration_since(self.now))
            }
            36 => Duration::from_millis(u64::from(fine) * u64::from(coarse)),
            _ => Duration::from_millis(u64::from(fine) << (coarse % 26)),
        };
        self.pass(self.now + time);
    }

    fn use_memory(&mut self, side: usize, choices: &mut Choices<'_>) {
        let kcp = &mut self.sides[side].kcp;
        match choices.byte() % 4 {
            0 => kcp.release_memory(),
            kind => {
                let memory = choices.pick(&[0, 1_540, 9_999]);
                kcp.limit_recv_memory(memory, kind == 1);
            }
        }
    }

    fn use_acks(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        match choices.byte() % 3 {
            0 => kcp.flush_acks(),
            1 => {
                let delays = kcp.delay_acks(now);
                assert!(!delays || !kcp.acks_at_once());
            }
            _ => {
                kcp.end_ack_delay();
                assert!(!kcp.end_ack_delay(), "the delay has ended");
            }
        }
    }

    fn use_keepalive(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        match choices.byte() % 4 {
            0 => kcp.ping(now),
            1 => kcp.defer_keepalive(side == OPENER, KeepaliveSide::Passive),
            2 => kcp.defer_keepalive(side == OPENER, KeepaliveSide::Active),
            _ => {
                let seconds = u64::from(choices.byte());
                kcp.limit_probe_interval(now, Duration::from_secs(seconds));
            }
        }
    }

    fn use_redundancy(&mut self, side: usize, choices: &mut Choices<'_>) {
        let kcp = &mut self.sides[side].kcp;
        let bundles = choices.byte() & 1 != 0;
        let rate = choices.pick(&[0, 100_000, 500_000, 1_000_000]);
        if bundles { kcp.set_bundling_rate(rate) } else { kcp.set_repair_rate(rate) }
    }

    /// Reports of the FEC stage of an endpoint.
    fn use_fec(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        let (what, count) = (choices.byte(), usize::from(choices.byte() % 8));
        match what % 4 {
            0 => kcp.on_parity_sent(count, count * 100),
            1 => {
                let flow = kcp.flow_timing();
                let first_xmit_seq = flow.next_xmit_seq.saturating_sub(choices.byte().into());
                let opened = now - Duration::from_millis(choices.byte().into());
                let (packets, parities) = (count + 2, count.min(2));
                let conv = flow.conv;
                let group = ClosedGroup { conv, first_xmit_seq, opened, packets, parities };
                kcp.on_fec_group_closed(now, &group);
            }
            2 => {
                let uses = kcp.uses_fec();
                kcp.set_fec_used(uses);
            }
            _ if kcp.may_fill_fec_group(now) => {
                let mut bytes = Vec::new();
                assert_eq!(kcp.write_fec_filler(now, &mut bytes), bytes.len());
                let path = kcp.active_path();
                self.carry(1 - side, Datagram { path, bytes });
            }
            _ => {}
        }
    }

    fn use_datagrams(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        match choices.byte() % 3 {
            0 => kcp.ask_for_datagrams(),
            1 => kcp.on_out_of_band_sent(now, usize::from(choices.byte()) * 6),
            _ => kcp.on_out_of_band_received(now),
        }
    }

    /// The system refuses a datagram because of its size.
    fn meet_size(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        let (what, path) = (choices.byte(), choices.byte() % MAX_PATHS);
        let size = choices.pick(&[0, 60, 577, 1_401]);
        let before = kcp.max_mtu();
        match what % 3 {
            0 => {
                let lowered = kcp.on_message_too_big(size);
                assert!(lowered.is_none_or(|mtu| mtu < before && mtu == kcp.max_mtu()));
            }
            1 => kcp.on_packet_too_big_on(now, PathId(path), size),
            _ => {
                let lowered = kcp.on_message_too_big_on(PathId(path), size);
                assert!(lowered.is_none_or(|mtu| usize::from(mtu) < size));
            }
        }
        assert!(kcp.max_mtu() <= before);
    }

    /// Changes of the path, and models that connections share.
    fn use_path(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        match choices.byte() % 5 {
            0 => kcp.network_changed(now),
            1 => kcp.on_path_changed(now),
            2 => {
                let config = Config::new();
                let other = Kcp::new(CONV, &config, now, Seed::default());
                kcp.share_path(&other.expect("the defaults are valid").shared_path());
            }
            3 => drop(kcp.shared_path()),
            _ => kcp.leave_path(),
        }
    }

    /// Paths that come and go.
    fn use_paths(&mut self, side: usize, choices: &mut Choices<'_>) {
        if self.setup.paths == Paths::One {
            return;
        }
        let (now, Side { kcp, cut, .. }) = (self.now, &mut self.sides[side]);
        let (what, path) = (choices.byte(), PathId(choices.byte() % MAX_PATHS));
        match what % 8 {
            0..=2 => {
                let before = kcp.paths().count();
                let added = self.sides[OPENER].kcp.add_path(now);
                let count = self.sides[OPENER].kcp.paths().count();
                assert!(side != OPENER || added.is_err() || count == before + 1);
            }
            3 => {
                let removed = self.sides[OPENER].kcp.remove_path(now, path);
                assert!(!removed || self.sides[OPENER].kcp.paths().all(|known| known.id != path));
            }
            4 => kcp.on_path_lost(now, path),
            5 => {
                kcp.set_arrival(path);
                assert_eq!(kcp.arrival(), path);
                kcp.set_arrival(PathId::FIRST);
            }
            6 => {
                let is_first = kcp.at_first_path();
                let is_removed = kcp.paths().all(|known| known.id != PathId::FIRST);
                assert!(is_first || is_removed || !kcp.aggregates_paths());
            }
            _ => *cut ^= 1 << path.number(),
        }
    }

    fn open(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        let (what, time) = (choices.byte(), choices.byte());
        match what % 5 {
            0 => kcp.open(now),
            1 => kcp.open_after(now, Duration::from_millis(time.into())),
            2 => kcp.expedite_open(now),
            3 => kcp.set_replaces(time & 1 == 0),
            _ => {
                kcp.abandon_open();
                assert!(kcp.has_started() || !kcp.is_initial_outstanding());
            }
        }
    }

    /// Address validation by other means than an answer.
    fn validate(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        match choices.byte() % 3 {
            0 => kcp.start_validation(now),
            1 => {
                kcp.on_address_validated();
                assert!(kcp.is_established() && kcp.send_budget().is_unlimited());
            }
            _ => {
                let ping = kcp.last_ping();
                let mut bytes = Vec::new();
                ping.emit(&mut bytes);
                self.carry(1 - side, Datagram { path: PathId::FIRST, bytes });
            }
        }
    }

    fn end(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, ending, how) = (self.now, 1 << (choices.byte() % 6), choices.byte());
        if !self.endings.has(ending) {
            return;
        }
        self.may_end |= ending != Endings::CLOSE;
        let kcp = &mut self.sides[side].kcp;
        match ending {
            Endings::CLOSE => {
                kcp.close(now);
                self.sides[side].has_closed = true;
            }
            Endings::ABORT => {
                let sends = kcp.abort(now);
                assert!(kcp.close_reason().is_some() && (!sends || kcp.is_resetting(now)));
                if how & 1 == 0 {
                    kcp.cancel_reset();
                    assert!(!kcp.is_resetting(now));
                }
            }
            Endings::SHUT_READ => kcp.shutdown_read(),
            Endings::EXIT => self.exit(side, how),
            Endings::RESTART => {
                let (config, seed) = (Config::new().mode(self.mode), Seed::new(how.into(), 1));
                let kcp = Kcp::new(CONV, &config, now, seed).expect("the defaults are valid");
                let wire = std::mem::take(&mut self.sides[side].wire);
                self.sides[side] = Side { wire, ..Side::new(kcp) };
                self.sides[side].written = self.sides[1 - side].read;
                self.setup.defers &= side == OPENER;
                self.tainted = true;
            }
            Endings::SUSPECT => kcp.suspect_restart(now),
            _ => {}
        }
    }

    #[cfg(feature = "qlog")]
    fn use_log(&mut self, side: usize, choices: &mut Choices<'_>) {
        let (now, peer) = (self.now, addr(1));
        let kcp = &mut self.sides[side].kcp;
        match choices.byte() % 5 {
            0 => {
                let is_client = side == OPENER;
                let title = Title { conv: CONV, is_client, local: peer, peer, reference_time: 0 };
                kcp.start_qlog(side as u64, &title);
            }
            1 => drop(kcp.take_qlog()),
            2 => kcp.log_end(now, ConnectionError::IdleTimeout),
            how => {
                let Some(log) = kcp.qlog(now, peer) else { return };
                let records = log.records();
                assert!(
                    records.is_empty()
                        || (records[0], records.last()) == (RECORD_SEPARATOR, Some(&b'\n'))
                );
                if how == 3 {
                    log.clear()
                } else {
                    log.drop_records()
                }
                let len = log.records().len();
                assert!(kcp.qlog_memory() >= len);
                let path = kcp.qlog_path();
                assert!(path == PathId::FIRST || path == kcp.active_path());
            }
        }
    }

    /// The process of one side ends.
    fn exit(&mut self, side: usize, how: u8) {
        let (now, kcp) = (self.now, &mut self.sides[side].kcp);
        let header = kcp.final_control(now, how & 1 != 0, how & 2 != 0);
        kcp.abort(now);
        kcp.cancel_reset();
        if let Some(header) = header {
            let mut bytes = Vec::new();
            header.emit(&mut bytes);
            self.carry(1 - side, Datagram { path: PathId::FIRST, bytes });
        }
    }
}
