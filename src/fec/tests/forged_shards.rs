//! Recovery while somebody forges shards of known addresses, without a cipher.

use std::collections::HashSet;

use super::*;

/// Datagrams of the honest peer, one each 10 ms. With each tenth of them a forged shard comes.
const DATAGRAMS: usize = 6_000;
/// What is forged. The honest peer sends from seqid 13,000 on, with a layout of 10/3.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    /// Nothing, to compare with.
    None,
    /// Any seqid, parity: the forger sees nothing of the flow.
    Parity,
    /// Any seqid, data.
    Data,
    /// Two shards in a row of another layout, somewhere.
    Pairs,
    /// All of a second in a row, somewhere: ten shards of one group.
    Burst,
    /// The forged seqid is within some four groups: parity in any position.
    NearParity,
    /// The same, either kind.
    Near,
}

/// The shard that is forged at `now` milliseconds, while the honest peer is at `top`.
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
    let body = payload(rng, 602);
    // A data shard with a size that fits.
    packet.extend_from_slice(&602_u16.to_le_bytes());
    packet.extend_from_slice(&body[2..]);
    Some(packet)
}

/// Datagrams that a decoder recovers of 6,000, of which 5 % are lost, and the wrong ones beside them.
fn recovered(forgery: Forgery, seed: u64) -> (usize, usize) {
    let (mut now, mut rng, mut noise) = (Instant::now(), Rng::new(seed), Rng::new(seed + 100));
    let mut encoder = FecEncoder::starting_at(config(10, 3), 13_000);
    let mut decoder = FecDecoder::new(None);
    let (mut lost, mut right, mut wrong) = (HashSet::new(), 0, 0);
    let (mut top, mut forged) = (13_000, 0);
    for i in 0..DATAGRAMS {
        now += millis(10);
        let mut packets = seal(&mut encoder, now, &payload(&mut rng, 600));
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
                let is_right = lost.remove(datagram);
                if is_right {
                    right += 1;
                } else {
                    wrong += 1;
                }
                is_right
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
        }
    }
}
