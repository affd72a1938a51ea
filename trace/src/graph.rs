//! A picture of one connection: segment numbers over time as tcptrace draws them, round trips, and segments in
//! flight.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use crate::Input;
use crate::flow::{Connection, Event, Push, Seen, Side};
use crate::plot::{Colour, Figure, Line, Mark, Panel, Points};
use crate::qlog;

/// The marks of the first panel, by why a segment left.
const PUSHES: [(Push, &str, Mark); 5] = [
    (Push::First, "sent", Mark::Tick(Colour(0x00_72_b2))),
    (Push::Retransmission, "sent again", Mark::Cross(Colour(0xd5_5e_00))),
    (Push::Spurious, "sent again needlessly", Mark::Plus(Colour(0xcc_79_a7))),
    (Push::Copy, "copy", Mark::Dot(Colour(0x77_77_77))),
    (Push::Recovered, "recovered by FEC", Mark::Ring(Colour(0x00_9e_73))),
];

pub(crate) fn write(input: &Input, output: &Path, conv: Option<u32>) -> Result<()> {
    let draw = drawing(output)?;
    let figure = if qlog::is_log(&input.capture) {
        qlog::figure(&input.capture)?
    } else {
        capture_figure(input, conv)?
    };
    std::fs::write(output, draw(&figure)?)
        .with_context(|| format!("cannot write {}", output.display()))
}

fn capture_figure(input: &Input, conv: Option<u32>) -> Result<Figure> {
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
    Ok(picture.figure(connection))
}

/// The picture of what a side sends, from the segments of its connection.
#[cfg(any(test, feature = "_testkit"))]
pub(crate) fn figure(connection: &Connection, side: Side, seen: &[Seen]) -> Figure {
    let mut picture = Picture::new(connection, side);
    seen.iter().for_each(|seen| picture.add(seen));
    picture.figure(connection)
}

/// Makes the bytes of a file.
type Draw = fn(&Figure) -> Result<Vec<u8>>;

/// How the file is drawn, by the ending of its name.
fn drawing(output: &Path) -> Result<Draw> {
    let ending = output.extension().map(|ending| ending.to_ascii_lowercase());
    match ending.as_ref().and_then(|ending| ending.to_str()) {
        Some("svg") => Ok(|figure| Ok(figure.svg().into_bytes())),
        Some("png") => Ok(Figure::png),
        _ => bail!("graph writes SVG and PNG: name a file such as graph.svg or graph.png"),
    }
}

/// What is drawn of the side that sends.
struct Picture {
    side: Side,
    began: u64,
    pushes: [Points; PUSHES.len()],
    repairs: Points,
    probes: Points,
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
        Self {
            side,
            began: connection.began_ns,
            pushes: std::array::from_fn(|_| Points::new()),
            repairs: Points::new(),
            probes: Points::new(),
            acknowledged: Points::new(),
            window: Points::new(),
            rtts: Points::new(),
            in_flight: Points::new(),
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
            Event::Ping { .. } | Event::WindowProbe => {
                let first = self.first.unwrap_or(seen.number);
                self.probes.push(at, seen.number.saturating_sub(first) as f64);
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
        let next = (self.highest - first) as f64 + 1.0;
        if una <= next {
            self.acknowledged.push(at, una);
            self.window.push(at, una + f64::from(seen.wnd));
            self.in_flight.push(at, next - una);
        }
    }

    fn figure(self, connection: &Connection) -> Figure {
        let id = connection.id;
        let (from, to) = if self.side == 0 { (id.a, id.b) } else { (id.b, id.a) };
        let sent = &connection.sides[self.side];
        let is_silent = connection.sides[1 - self.side].datagrams == 0;
        let silence = if is_silent { "; nothing came back" } else { "" };
        let top = (self.highest - self.first.unwrap_or_default()) as f64;
        // A window far above the data would make a line of it.
        let lines = vec![
            Line { name: "acknowledged", colour: Colour(0x00_00_00), points: self.acknowledged },
            Line {
                name: "end of the window",
                colour: Colour(0xe6_9f_00),
                points: self.window.below(top * 1.3 + 10.0),
            },
        ];
        let pushes =
            PUSHES.iter().zip(self.pushes).map(|((_, name, mark), points)| (*name, *mark, points));
        let others = [
            ("repair symbol", Mark::Ring(Colour(0x56_b4_e9)), self.repairs),
            ("ping or probe", Mark::Diamond(Colour(0x00_00_00)), self.probes),
        ];
        let marks = pushes.chain(others).collect();
        let rtts = vec![("data to its ACK", Mark::Dot(Colour(0x00_72_b2)), self.rtts)];
        let flight =
            vec![Line { name: "in flight", colour: Colour(0x00_72_b2), points: self.in_flight }];
        Figure {
            title: format!("{from} to {to}, conversation {:#010x}", id.conv),
            note: format!(
                "{} segments, {} bytes; {} sent again, {} of them had arrived{}",
                sent.segments, sent.payload, sent.retransmissions, sent.spurious, silence
            ),
            seconds: connection.last_ns.saturating_sub(connection.began_ns) as f64 / 1e9,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use std::net::SocketAddr;

    use tiny_skia::Pixmap;

    use super::*;
    use crate::flow::Id;

    /// A picture with all that a picture can have, and the longest addresses.
    fn full() -> Figure {
        let ends = [1, 2].map(|last| {
            SocketAddr::from((
                [0x2001, 0xdb8, 0x1111, 0x2222, 0x3333, 0x4444, 0x5555, last],
                65_535,
            ))
        });
        let connection = Connection {
            id: Id { a: ends[0], b: ends[1], conv: u32::MAX },
            began_ns: 0,
            last_ns: 987_654_321_000,
            sides: Default::default(),
            end: None,
            fins: [false; 2],
            inside: Default::default(),
        };
        let mut picture = Picture::new(&connection, 0);
        (picture.first, picture.highest) = (Some(0), 123_456_789);
        let Picture { pushes, repairs, probes, acknowledged, window, rtts, in_flight, .. } =
            &mut picture;
        let others = [repairs, probes, acknowledged, window, rtts, in_flight];
        for (index, points) in (0_u32..).zip(pushes.iter_mut().chain(others)) {
            points.push(f64::from(index) * 80.0, f64::from(index + 1) * 10_000_000.0);
            points.push(f64::from(index) * 80.0 + 40.0, f64::from(index + 1) * 10_000_000.0);
        }
        picture.figure(&connection)
    }

    #[test]
    fn texts_of_a_full_picture_overlap_neither_each_other_nor_the_edge() {
        let texts = full().texts();
        let ([page], texts) = texts.split_first_chunk().unwrap();
        for (index, (text, edges)) in texts.iter().enumerate() {
            let [left, upper, right, lower] = *edges;
            let within = left >= page.1[0] && upper >= page.1[1] && right <= page.1[2];
            assert!(within && lower <= page.1[3], "{text}: {edges:?}");
            for (other, [its_left, its_upper, its_right, its_lower]) in &texts[..index] {
                let beside = right < *its_left || *its_right < left;
                let apart = lower < *its_upper || *its_lower < upper;
                assert!(beside || apart, "{text} and {other} overlap");
            }
        }
        for name in PUSHES.map(|(_, name, _)| name) {
            assert!(texts.iter().any(|(text, _)| text == name), "{name}");
        }
    }

    #[test]
    fn svg_and_png_have_every_mark_and_line() {
        let figure = full();
        let svg = figure.svg();
        let png = Pixmap::decode_png(&figure.png().unwrap()).unwrap();
        assert!(svg.contains(&format!("height=\"{}\"", png.height())), "{}", png.height());
        assert_eq!(png.width(), 1_200);
        let lines = figure.panels.iter().flat_map(|panel| &panel.lines).map(|line| line.colour);
        let marks = figure.panels.iter().flat_map(|panel| &panel.marks);
        let marks = marks.map(|(_, mark, _)| mark.colour());
        let legible = Colour(0x22_22_22);
        for Colour(colour) in lines.chain(marks).chain([legible]) {
            assert!(svg.contains(&format!("\"#{colour:06x}\"")), "{colour:06x}");
            let [_, red, green, blue] = colour.to_be_bytes();
            // The edges of a line are mixed with white.
            let near = |pixel: &tiny_skia::PremultipliedColorU8| {
                let parts = [(pixel.red(), red), (pixel.green(), green), (pixel.blue(), blue)];
                parts.iter().all(|(part, wanted)| part.abs_diff(*wanted) < 48)
            };
            assert!(png.pixels().iter().filter(|pixel| near(pixel)).count() > 8, "{colour:06x}");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_an_error_that_names_the_kinds() {
        for name in ["graph.svg", "graph.SVG", "graph.png"] {
            assert!(drawing(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["graph", "graph.jpg", "svg"] {
            let error = drawing(Path::new(name)).err().unwrap().to_string();
            assert!(error.contains("graph.svg or graph.png"), "{error}");
        }
    }
}
