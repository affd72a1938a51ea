//! Body of the fuzz target for forward error correction. Private; see `fuzz/`.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Choices;
use crate::fec::{DATA, FecConfig, FecDecoder, FecEncoder, HEADER_LEN, PARITY};

/// Steps per input, and packets that the network holds.
const STEPS: usize = 2_000;
const WIRE: usize = 600;
/// Longest datagram.
const LONGEST: usize = 300;

fn shape(choices: &mut Choices<'_>) -> Option<FecConfig> {
    let shapes = [(10, 3), (1, 1), (2, 2), (3, 5), (200, 56), (20, 4)];
    let (data, parity) = match usize::from(choices.byte()) {
        choice if choice < 200 => shapes[choice % shapes.len()],
        _ => (usize::from(choices.byte()), usize::from(choices.byte())),
    };
    FecConfig::new(data, parity).ok()
}

/// A sender, a decoder, and the packets in flight between them.
struct Path {
    encoder: FecEncoder,
    decoder: FecDecoder,
    wire: Vec<Vec<u8>>,
    /// Datagrams sent, by seqid. A restarted peer reuses a seqid for several datagrams.
    sent: HashMap<u32, HashSet<Vec<u8>>>,
    all: HashSet<Vec<u8>>,
    count: u32,
    /// The decoder received a packet that the sender did not send, or seqids were reused: any bytes
    /// may be recovered then, within bounds.
    tainted: bool,
    longest: usize,
    now: Instant,
}

/// Any packets in any order at any time: datagrams recovered from honest packets were sent, and
/// groups and memory stay within their bounds.
///
/// # Panics
///
/// If that does not hold.
#[expect(clippy::disallowed_methods, reason = "the run needs one real instant to count from")]
pub fn fec_decode(data: &[u8]) {
    let mut choices = Choices(data);
    let config = shape(&mut choices).or_else(|| FecConfig::new(10, 3).ok());
    let Some(config) = config else { return };
    let start = if choices.byte() < 128 { 0 } else { u32::MAX - choices.word() % 2_000 };
    let initial = if choices.byte() < 128 { Some(config) } else { shape(&mut choices) };
    let mut path = Path {
        encoder: FecEncoder::starting_at(config, start),
        decoder: FecDecoder::new(initial),
        wire: Vec::new(),
        sent: HashMap::new(),
        all: HashSet::new(),
        count: 0,
        tainted: false,
        longest: 0,
        now: Instant::now(),
    };
    for _ in 0..STEPS {
        if choices.0.is_empty() {
            break;
        }
        path.step(&mut choices);
    }
}

impl Path {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let choice = choices.byte();
        match choice & 15 {
            0..=3 => (0..=choice >> 4).for_each(|_| self.send(choices)),
            4..=8 => (0..=choice >> 3).for_each(|_| self.deliver(0, false)),
            9 => {
                let at = usize::from(choices.byte());
                self.deliver(at, choice & 16 != 0);
            }
            10 => (0..=choice >> 4).for_each(|_| self.drop_one(choices)),
            11 => self.now += Duration::from_millis(u64::from(choices.byte()) * 8),
            12 => self.forge(choices),
            13 => self.damage(choices),
            14 => {
                if let Some(config) = shape(choices) {
                    self.encoder.set_config(config);
                }
            }
            _ if choice > 240 => {
                let start = if choice & 32 == 0 { 0 } else { choices.word() };
                self.encoder = FecEncoder::starting_at(self.encoder.config(), start);
                self.tainted = true;
            }
            _ => self.now += Duration::from_millis(u64::from(choice >> 4)),
        }
    }

    /// Sends a datagram of unique contents.
    fn send(&mut self, choices: &mut Choices<'_>) {
        let len = usize::from(choices.byte()) * LONGEST / 255;
        let mut datagram = self.count.to_le_bytes().to_vec();
        datagram.resize(4 + len, choices.byte());
        self.count += 1;
        let mut packet = vec![0; HEADER_LEN];
        packet.extend_from_slice(&datagram);
        let due = self.encoder.seal(self.now, &mut packet);
        let number = packet.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
        self.sent.entry(number).or_default().insert(datagram.clone());
        self.all.insert(datagram);
        self.wire.push(packet);
        for index in 0..due {
            let mut parity = Vec::new();
            assert_eq!(self.encoder.emit_parity(index, &mut parity), parity.len());
            self.wire.push(parity);
        }
        let excess = self.wire.len().saturating_sub(WIRE);
        self.wire.drain(..excess);
    }

    fn deliver(&mut self, at: usize, keep: bool) {
        if self.wire.is_empty() {
            return;
        }
        let at = at % self.wire.len();
        let packet = if keep { self.wire[at].clone() } else { self.wire.remove(at) };
        self.input(&packet);
    }

    fn drop_one(&mut self, choices: &mut Choices<'_>) {
        if !self.wire.is_empty() {
            let at = usize::from(choices.byte()) % self.wire.len();
            self.wire.remove(at);
        }
    }

    /// Forges a packet whose seqid is near recent ones or arbitrary.
    fn forge(&mut self, choices: &mut Choices<'_>) {
        self.tainted = true;
        let near = self.wire.first().and_then(|packet| packet.first_chunk());
        let near = near.map_or(0, |number| u32::from_le_bytes(*number));
        let number = match choices.byte() % 4 {
            0 => choices.word(),
            1 => near.wrapping_sub(u32::from(choices.byte())),
            _ => near.wrapping_add(u32::from(choices.byte()) * 16),
        };
        let kind = [DATA, PARITY, 0xF3, 81][usize::from(choices.byte() % 4)];
        let mut packet = number.to_le_bytes().to_vec();
        packet.extend_from_slice(&kind.to_le_bytes());
        packet.resize(6 + usize::from(choices.byte()), choices.byte());
        self.input(&packet);
    }

    /// Changes one byte of a sent packet, or truncates the packet.
    fn damage(&mut self, choices: &mut Choices<'_>) {
        let Some(mut packet) = self.wire.pop() else { return };
        self.tainted = true;
        let at = usize::from(choices.byte()) % packet.len();
        match choices.byte() {
            0..128 => packet.truncate(at),
            value => packet[at] ^= value,
        }
        self.input(&packet);
    }

    fn input(&mut self, packet: &[u8]) {
        self.longest = self.longest.max(packet.len());
        // Under a layout other than the sender's, noise may parse as a datagram.
        let honest = !self.tainted;
        let mut layouts = vec![self.decoder.layout()];
        let mut unknown = 0;
        let all = &self.all;
        self.decoder.input(self.now, packet, |datagram| {
            let known = all.contains(datagram);
            unknown += u32::from(!known);
            known
        });
        layouts.push(self.decoder.layout());
        let constant = layouts.iter().all(|layout| *layout == Some(self.encoder.config()));
        assert!(
            unknown == 0 || !honest || !constant || self.mixed(),
            "recovered what was not sent"
        );
        self.decoder.check_invariants();
        let (memory, cache) = self.decoder.memory();
        // Padding to the next lane, and alignment, add bytes.
        assert!(memory <= 5 * 256 * (self.longest + 126), "{memory} bytes");
        assert!(cache <= 256 * 1024, "{cache} bytes");
    }

    /// Whether packets of other groups may be in flight.
    fn mixed(&self) -> bool {
        self.decoder.stats().layout_changes > 0
            || self.sent.values().any(|datagrams| datagrams.len() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::rng::Rng;

    #[test]
    fn fec_decoder_keeps_its_bounds_for_any_packets() {
        for seed in 0..400 {
            println!("seed {seed}");
            let mut rng = Rng::new(seed);
            let len = rng.range(1, 3_000) as usize;
            let mut input: Vec<u8> =
                std::iter::repeat_with(|| rng.next() as u8).take(len).collect();
            // Half of the inputs forge nothing, and some keep one layout throughout.
            for byte in input.iter_mut().skip(8) {
                let step = *byte & 15;
                if (seed % 2 == 0 && step > 11) || (seed % 4 == 0 && step == 14) {
                    *byte = *byte & 0xF0 | 4;
                }
            }
            fec_decode(&input);
        }
    }
}
