//! Pictures as SVG.

use std::fmt::Write as _;

use super::{Anchor, Canvas, Colour, RING, Size, Step};

pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        // The width of a letter is some 0.6 of the size in each of these fonts.
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" \
             font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        ))
    }

    pub(super) fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

impl Canvas for Svg {
    fn stroke(&mut self, path: &[Step], Colour(colour): Colour, width: f64) {
        if path.is_empty() {
            return;
        }
        self.0.push_str("<path d=\"");
        let mut pen = Pen { out: &mut self.0, x: 0, y: 0, command: None };
        path.iter().for_each(|step| pen.step(*step));
        let _ = writeln!(
            self.0,
            "\" fill=\"none\" stroke=\"#{colour:06x}\" stroke-width=\"{width}\"/>"
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: Size, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let size = match size {
            Size::Normal => 12,
            Size::Title => 15,
        };
        let _ = writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" \
             fill=\"#222222\">{text}</text>"
        );
    }
}

/// Writes the commands of a path, relative to the place before: the shortest.
struct Pen<'a> {
    out: &'a mut String,
    /// Tenths of a pixel, so that roundings do not add up.
    x: i64,
    y: i64,
    /// Not written again where it repeats itself.
    command: Option<char>,
}

impl Pen<'_> {
    fn step(&mut self, step: Step) {
        match step {
            Step::Move(x, y) => {
                let (dx, dy) = self.to(x, y);
                self.command('m', &[dx, dy]);
            }
            Step::Line(x, y) => match self.to(x, y) {
                (dx, 0) => self.command('h', &[dx]),
                (0, dy) => self.command('v', &[dy]),
                (dx, dy) => self.command('l', &[dx, dy]),
            },
            Step::Ring(x, y) => {
                let (dx, dy) = self.to(x - RING, y);
                self.command('m', &[dx, dy]);
                let across = 2.0 * RING;
                let _ = write!(
                    self.out,
                    "a{RING} {RING} 0 1 0 {across} 0a{RING} {RING} 0 1 0 -{across} 0"
                );
                self.command = None;
            }
        }
    }

    /// Moves to a place, and returns how far it was.
    fn to(&mut self, x: f64, y: f64) -> (i64, i64) {
        let (x, y) = ((x * 10.0).round() as i64, (y * 10.0).round() as i64);
        let far = (x - self.x, y - self.y);
        (self.x, self.y) = (x, y);
        far
    }

    fn command(&mut self, command: char, tenths: &[i64]) {
        // Places behind the first one of a move are lines.
        let is_repeated = self.command == Some(command) && command != 'm';
        if !is_repeated {
            self.out.push(command);
        }
        self.command = Some(command);
        for (index, tenths) in tenths.iter().enumerate() {
            if (index > 0 || is_repeated) && *tenths >= 0 {
                self.out.push(' ');
            }
            let (sign, whole, rest) =
                (if *tenths < 0 { "-" } else { "" }, tenths.abs() / 10, tenths.abs() % 10);
            let _ = match rest {
                0 => write!(self.out, "{sign}{whole}"),
                rest => write!(self.out, "{sign}{whole}.{rest}"),
            };
        }
    }
}
