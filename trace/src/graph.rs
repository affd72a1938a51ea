//! A picture of one connection: segment numbers over time as tcptrace draws them, round trips, and segments in
//! flight.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::Input;
use crate::flow::{Connection, Event, Push, Seen, Side};
use crate::plot::{Figure, Line, Mark, Panel, Points};

/// Points of one kind that are kept; beyond that every second one goes, again and again.
const MAX_POINTS: usize = 1 << 20;

/// The marks of the first panel, by why a segment left.
const PUSHES: [(Push, &str, Mark); 5] = [
    (Push::First, "sent", Mark::Tick("#0072b2")),
    (Push::Retransmission, "sent again", Mark::Cross("#d55e00")),
    (Push::Spurious, "sent again, had arrived", Mark::Plus("#cc79a7")),
    (Push::Copy, "copy", Mark::Dot("#777777")),
    (Push::Recovered, "recovered by FEC", Mark::Ring("#009e73")),
];

pub(crate) fn write(input: &Input, svg: &Path, conv: Option<u32>) -> Result<()> {
    ensure!(
        input.capture != Path::new("-"),
        "graph reads the capture twice: name a file instead of -"
    );
    let found = input.read(|_, _| Ok(()))?.connections;
    let candidates = found.all.iter().enumerate();
    let wanted =
        candidates.filter(|(_, connection)| conv.is_none_or(|conv| connection.id.conv == conv));
    let chosen = wanted.max_by_key(|(_, connection)| connection.payload());
    let (index, connection) = chosen.with_context(|| match conv {
        Some(conv) => format!("the capture has no conversation {conv:#x}: `summary` lists them"),
        None => {
            "the capture has no KCP: name the cipher with --crypt and its key with --key".to_owned()
        }
    })?;
    let side = usize::from(connection.sides[1].payload > connection.sides[0].payload);
    let mut picture = Picture::new(connection, side);
    input.read(|of, seen| {
        if of == index {
            picture.add(seen);
        }
        Ok(())
    })?;
    let drawn = picture.figure(connection).svg();
    std::fs::write(svg, drawn).with_context(|| format!("cannot write {}", svg.display()))
}

/// What is drawn of the side that sends.
struct Picture {
    side: Side,
    began: u64,
    pushes: [Points; PUSHES.len()],
    repairs: Points,
    acknowledged: Points,
    window: Points,
    rtts: Points,
    in_flight: Points,
    /// Number of the first segment, and the highest one.
    first: Option<u64>,
    highest: u64,
}

impl Picture {
    fn new(connection: &Connection, side: Side) -> Self {
        let points = || Points::new(MAX_POINTS);
        Self {
            side,
            began: connection.began_ns,
            pushes: std::array::from_fn(|_| points()),
            repairs: points(),
            acknowledged: points(),
            window: points(),
            rtts: points(),
            in_flight: points(),
            first: None,
            highest: 0,
        }
    }

    fn add(&mut self, seen: &Seen) {
        let at = seen.at_ns.saturating_sub(self.began) as f64 / 1e9;
        if seen.side == self.side { self.add_sent(at, seen) } else { self.add_received(at, seen) }
    }

    fn add_sent(&mut self, at: f64, seen: &Seen) {
        match seen.event {
            Event::Push { why, .. } => {
                let first = *self.first.get_or_insert(seen.number);
                self.highest = self.highest.max(seen.number);
                let kind = PUSHES.iter().position(|(kind, ..)| *kind == why);
                if let Some(points) = kind.and_then(|kind| self.pushes.get_mut(kind)) {
                    points.push(at, seen.number.saturating_sub(first) as f64);
                }
                self.in_flight.push(at, seen.in_flight as f64);
            }
            Event::Repair { .. } => {
                let first = self.first.unwrap_or(seen.number);
                self.repairs.push(at, seen.number.saturating_sub(first) as f64);
            }
            _ => {}
        }
    }

    /// What the peer acknowledges, and how much more it takes.
    fn add_received(&mut self, at: f64, seen: &Seen) {
        if let Event::Ack { rtt_us: Some(rtt), .. } = seen.event {
            self.rtts.push(at, rtt as f64 / 1e3);
        }
        let Some(first) = self.first else { return };
        let highest = self.highest as u32;
        let behind = i64::from(seen.una.wrapping_sub(highest).cast_signed());
        let una = self.highest.saturating_add_signed(behind).saturating_sub(first) as f64;
        if una <= (self.highest - first) as f64 + 1.0 {
            self.acknowledged.push(at, una);
            self.window.push(at, una + f64::from(seen.wnd));
        }
    }

    fn figure(self, connection: &Connection) -> Figure {
        let id = connection.id;
        let (from, to) = if self.side == 0 { (id.a, id.b) } else { (id.b, id.a) };
        let sent = &connection.sides[self.side];
        let top = (self.highest - self.first.unwrap_or_default()) as f64;
        // A window far above the data would make a line of it.
        let lines = vec![
            Line { name: "acknowledged", colour: "#000000", points: self.acknowledged },
            Line {
                name: "end of the window",
                colour: "#e69f00",
                points: self.window.below(top * 1.3 + 10.0),
            },
        ];
        let pushes =
            PUSHES.iter().zip(self.pushes).map(|((_, name, mark), points)| (*name, *mark, points));
        let marks =
            pushes.chain([("repair symbol", Mark::Ring("#56b4e9"), self.repairs)]).collect();
        let rtts = vec![("data to its ACK", Mark::Dot("#0072b2"), self.rtts)];
        let flight = vec![Line { name: "in flight", colour: "#0072b2", points: self.in_flight }];
        Figure {
            title: format!("{from} to {to}, conversation {:#010x}", id.conv),
            note: format!(
                "{} segments, {} bytes; {} sent again, {} of them had arrived",
                sent.segments, sent.payload, sent.retransmissions, sent.spurious
            ),
            panels: vec![
                Panel { label: "segment number", height: 420.0, lines, marks },
                Panel {
                    label: "ms from data to its ACK",
                    height: 140.0,
                    lines: Vec::new(),
                    marks: rtts,
                },
                Panel {
                    label: "segments in flight",
                    height: 140.0,
                    lines: flight,
                    marks: Vec::new(),
                },
            ],
        }
    }
}
