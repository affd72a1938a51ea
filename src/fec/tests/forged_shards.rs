//! Recovery while an attacker forges shards of known addresses, without a cipher.

use std::collections::HashSet;

use super::*;
use crate::core::segment::{self, Command, Header};
use crate::core::seq::{Sn, Ts};

/// Datagrams of the honest peer, one each 10 ms. Every tenth is accompanied by a forged shard.
const DATAGRAMS: usize = 6_000;
/// The forged shards. The honest peer sends from seqid 13,000 on, with layout 10/3.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    /// Nothing, as a baseline.
    None,
    /// Any seqid, parity: the forger does not see the flow.
    Parity,
    /// Any seqid, data.
    Data,
    /// Two consecutive shards of another layout, anywhere.
    Pairs,
    /// The ten shards of a second in a row, in one group anywhere.
    Burst,
    /// Parity in any position of about four groups.
    NearParity,
    /// The same, of either kind.
    Near,
}

/// Returns the shard forged at `now` milliseconds, while the honest peer is at `top`.
fn forge(forgery: Forgery, rng: &mut Rng, count: usize, top: u32) -> Option<Vec<u8>> {
    let any = rng.next() as u32 % config(10, 3).paws();
    let near = (top + rng.below(52) as u32).saturating_sub(26);
    let place = count as u32;
    let (seqid, parity) = match forgery {
        Forgery::None => return None,
        Forgery::Parity => (any, true),
        Forgery::Data => (any, false),
        Forgery::Pairs => ((1 << 30) + place / 2 * 100_000 + place % 2, place % 2 == 1),
        Forgery::Burst => ((1 << 30) + place / 10 * 100_000 + place % 10, false),
        Forgery::NearParity => (near, true),
        Forgery::Near => (near, rng.chance(500_000)),
    };
    let mut packet = seqid.to_le_bytes().to_vec();
    packet.extend_from_slice(&if parity { PARITY } else { DATA }.to_le_bytes());
    let body = payload(rng, 624);
    // A data shard with a valid size.
    packet.extend_from_slice(&626_u16.to_le_bytes());
    packet.extend_from_slice(&body);
    Some(packet)
}

/// Datagram number `i`: a PUSH of 600 bytes whose payload depends on the number.
fn push(i: usize) -> Vec<u8> {
    let (sn, ts) = (Sn(i as u32), Ts(10 * i as u32));
    let (conv, wnd, una, len) = (7, 128, Sn(0), 600);
    let mut datagram = Vec::new();
    Header { conv, command: Command::Push, frg: 0, wnd, ts, sn, una, len }.emit(&mut datagram);
    datagram.extend(payload(&mut Rng::new(i as u64 + 1_000_000), 600));
    datagram
}

/// The driver's check of a recovered datagram.
fn is_push(datagram: &[u8]) -> bool {
    segment::validate(datagram, 7).is_ok()
}

/// Whether it is one of the datagrams up to number `i`.
fn is_known(datagram: &[u8], i: usize) -> bool {
    Header::parse(datagram)
        .is_ok_and(|header| header.sn.0 as usize <= i && push(header.sn.0 as usize) == datagram)
}

/// Returns the number of datagrams recovered when 5 % of 6,000 are lost, and the number of wrong
/// ones.
fn recovered(forgery: Forgery, seed: u64) -> (usize, usize) {
    let (mut now, mut rng, mut noise) = (Instant::now(), Rng::new(seed), Rng::new(seed + 100));
    let mut encoder = FecEncoder::starting_at(config(10, 3), 13_000);
    let mut decoder = FecDecoder::new(None);
    let (mut lost, mut right, mut wrong) = (HashSet::new(), 0, 0);
    let (mut top, mut forged) = (13_000, 0);
    for i in 0..DATAGRAMS {
        now += millis(10);
        let mut packets = seal(&mut encoder, now, &push(i));
        top = packets.last().map_or(top, |packet| seqid(packet));
        packets.retain(|packet| {
            let is_lost = rng.chance(50_000);
            if is_lost && fec_flag(packet) == FecFlag::Data {
                lost.insert(packet[HEADER_LEN..].to_vec());
            }
            !is_lost
        });
        let (due, burst) = (i % 10 == 0, matches!(forgery, Forgery::Burst));
        let count = if burst { 10 * usize::from(i % 100 == 0) } else { usize::from(due) };
        for _ in 0..count {
            packets.extend(forge(forgery, &mut noise, forged, top));
            forged += 1;
        }
        for packet in packets {
            decoder.input(now, &packet, |datagram| {
                let is_valid = is_push(datagram);
                right += usize::from(lost.remove(datagram));
                wrong += usize::from(is_valid && !is_known(datagram, i));
                is_valid
            });
        }
        decoder.check_invariants();
    }
    (right, wrong)
}

#[test]
fn forged_shards_leave_four_fifths_of_the_recovery() {
    for seed in 1..=3 {
        let (without, wrong) = recovered(Forgery::None, seed);
        assert!(without > 200 && wrong == 0, "{without}, wrong {wrong}");
        for forgery in [
            Forgery::Parity,
            Forgery::Data,
            Forgery::Pairs,
            Forgery::Burst,
            Forgery::NearParity,
            Forgery::Near,
        ] {
            let (with, wrong) = recovered(forgery, seed);
            println!("seed {seed}, {forgery:?}: {with} of {without}, {wrong} wrong");
            assert!(with * 5 >= without * 4, "seed {seed}, {forgery:?}: {with} of {without}");
            assert_eq!(wrong, 0, "seed {seed}, {forgery:?}");
        }
    }
}

/// An honest peer that changes its layout, or restarts with another, causes no wrong recovery.
/// Datagrams are of equal size, so wrong ones differ from right ones in a few header bytes.
#[test]
fn layout_change_recovers_nothing_wrong() {
    let pairs = [((10, 3), (20, 6)), ((20, 2), (40, 4)), ((20, 2), (19, 3)), ((10, 1), (5, 1))];
    for ((old, new), keeps_seqids) in
        pairs.into_iter().flat_map(|pair| [(pair, false), (pair, true)])
    {
        let (old, new) = (config(old.0, old.1), config(new.0, new.1));
        // If the layouts differ in one position and its packet is lost, nothing contradicts.
        if old.sum() == new.sum() && !keeps_seqids {
            continue;
        }
        for seed in 0..20 {
            let (mut now, mut rng) = (Instant::now(), Rng::new(seed));
            let mut encoder = FecEncoder::starting_at(old, 26 * old.sum());
            let mut decoder = FecDecoder::new(Some(old));
            let mut right = 0;
            for i in 0..2_000 {
                now += millis(2);
                if i == 1_000 && keeps_seqids {
                    encoder.set_config(new);
                } else if i == 1_000 {
                    let next = 26 * old.sum() + 1_000 * old.sum() / old.data_shards() as u32;
                    encoder = FecEncoder::starting_at(new, next.next_multiple_of(new.sum()));
                }
                for packet in seal(&mut encoder, now, &push(i)) {
                    if rng.chance(30_000) {
                        continue;
                    }
                    decoder.input(now, &packet, |datagram| {
                        let is_valid = is_push(datagram);
                        assert!(!is_valid || is_known(datagram, i), "{old:?} {new:?} seed {seed}");
                        right += usize::from(is_valid);
                        is_valid
                    });
                }
                decoder.check_invariants();
            }
            assert!(right > 10, "{old:?} {new:?} seed {seed}: {right}");
        }
    }
}

/// A slow flow with pauses: one forged shard a second, of seqids near each other.
#[test]
fn forged_shards_in_pauses_do_not_end_the_recovery_of_a_slow_flow() {
    let (mut now, mut rng) = (Instant::now(), Rng::new(1));
    let mut encoder = FecEncoder::starting_at(config(10, 3), 13_000);
    let mut decoder = FecDecoder::new(Some(config(10, 3)));
    let (mut right, mut lost) = (0, 0);
    for i in 0..2_000 {
        // Ten datagrams a second, and a pause of two seconds after each hundred.
        now += millis(if i % 100 == 99 { 2_000 } else { 100 });
        let mut packets = seal(&mut encoder, now, &push(i));
        let forged = |place: u32| {
            let mut packet = ((1 << 30) / 13 * 13 + place % 13).to_le_bytes().to_vec();
            packet.extend_from_slice(&PARITY.to_le_bytes());
            packet.resize(626, 0x5A);
            packet
        };
        if i % 100 == 99 {
            // Alone after the pause: they count.
            packets.insert(0, forged(10));
            packets.insert(0, forged(11));
        } else if i % 10 == 0 {
            packets.push(forged(10 + (i / 10) as u32 % 3));
        }
        packets.retain(|packet| {
            let is_lost = rng.chance(50_000) && fec_flag(packet) == FecFlag::Data;
            lost += usize::from(is_lost);
            !is_lost
        });
        for packet in packets {
            decoder.input(now, &packet, |datagram| {
                right += usize::from(is_push(datagram));
                is_push(datagram)
            });
        }
    }
    assert!(right * 2 >= lost, "{right} of {lost}");
}
