//! Charts over time as SVG: panels above each other with one time axis.

use std::collections::HashSet;
use std::fmt::Write as _;

const WIDTH: f64 = 1_200.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const HEAD: f64 = 64.0;
/// Between panels, for the legend of the next one.
const GAP: f64 = 44.0;
const FOOT: f64 = 50.0;
const INNER: f64 = WIDTH - LEFT - RIGHT;
/// Of the letters: the width of one, roughly.
const LETTER: f64 = 7.2;

/// Values over time, of which every second one goes when there are too many.
#[derive(Debug)]
pub(crate) struct Points {
    points: Vec<(f64, f64)>,
    most: usize,
    /// Of this many values in a row the last one is kept.
    every: u64,
    seen: u64,
}

impl Points {
    pub(crate) fn new(most: usize) -> Self {
        Self { points: Vec::new(), most, every: 1, seen: 0 }
    }

    pub(crate) fn push(&mut self, at: f64, value: f64) {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        self.points.push((at, value));
        if self.points.len() > self.most {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.every *= 2;
        }
    }

    /// Without the values above `limit`.
    pub(crate) fn below(mut self, limit: f64) -> Self {
        self.points.retain(|(_, value)| *value <= limit);
        self
    }
}

/// How a point is drawn: shapes differ too, for those who do not see the colours.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Tick(&'static str),
    Cross(&'static str),
    Plus(&'static str),
    Dot(&'static str),
    Ring(&'static str),
}

impl Mark {
    /// Commands of a path around a point, its colour, and whether it is filled.
    fn path(self, x: f64, y: f64) -> String {
        match self {
            Self::Tick(_) => format!("M{x:.1} {:.1}v3", y - 1.5),
            Self::Cross(_) => format!("M{:.1} {:.1}l6 6m0 -6l-6 6", x - 3.0, y - 3.0),
            Self::Plus(_) => format!("M{:.1} {y:.1}h8m-4 -4v8", x - 4.0),
            Self::Dot(_) => format!("M{:.1} {y:.1}h2", x - 1.0),
            Self::Ring(_) => format!("M{:.1} {y:.1}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0", x - 3.0),
        }
    }

    fn colour(self) -> &'static str {
        let (Self::Tick(colour)
        | Self::Cross(colour)
        | Self::Plus(colour)
        | Self::Dot(colour)
        | Self::Ring(colour)) = self;
        colour
    }

    fn stroke(self) -> f64 {
        match self {
            Self::Tick(_) | Self::Ring(_) => 1.2,
            Self::Cross(_) | Self::Plus(_) => 1.6,
            Self::Dot(_) => 2.0,
        }
    }
}

/// A line that keeps its value until the next point.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) colour: &'static str,
    pub(crate) points: Points,
}

#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) label: &'static str,
    pub(crate) height: f64,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<(&'static str, Mark, Points)>,
}

#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) panels: Vec<Panel>,
}

impl Figure {
    pub(crate) fn svg(&self) -> String {
        let end =
            self.panels.iter().flat_map(Panel::points).map(|(at, _)| *at).fold(1e-6, f64::max);
        let height = HEAD + FOOT + self.panels.iter().map(|panel| panel.height + GAP).sum::<f64>();
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        text(&mut out, LEFT, 26.0, "start", 16, &self.title);
        text(&mut out, LEFT, 46.0, "start", 13, &self.note);
        let mut top = HEAD;
        for panel in &self.panels {
            top += GAP;
            panel.draw(&mut out, top, end);
            top += panel.height;
        }
        for tick in ticks(end, 10.0) {
            text(&mut out, LEFT + tick / end * INNER, top + 18.0, "middle", 12, &number(tick));
        }
        text(&mut out, LEFT + INNER / 2.0, top + 38.0, "middle", 13, "seconds");
        out.push_str("</svg>\n");
        out
    }
}

impl Panel {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        let lines = self.lines.iter().flat_map(|line| &line.points.points);
        lines.chain(self.marks.iter().flat_map(|(.., points)| &points.points))
    }

    fn draw(&self, out: &mut String, top: f64, end: f64) {
        let most = self.points().map(|(_, value)| *value).fold(1.0, f64::max) * 1.05;
        let bottom = top + self.height;
        let place = |(at, value): (f64, f64)| {
            (LEFT + at / end * INNER, bottom - value / most * self.height)
        };
        for tick in ticks(most, self.height / 45.0) {
            let (_, y) = place((0.0, tick));
            let _ = writeln!(out, "<path d=\"M{LEFT} {y:.1}h{INNER}\" stroke=\"#e5e5e5\"/>");
            text(out, LEFT - 8.0, y + 4.0, "end", 12, &number(tick));
        }
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {top}v{height}h{INNER}\" fill=\"none\" stroke=\"#333333\"/>",
            height = self.height
        );
        text(out, LEFT, top - 10.0, "start", 13, self.label);
        self.legend(out, top - 10.0);
        for line in &self.lines {
            let path = steps(line.points.points.iter().map(|point| place(*point)));
            let colour = line.colour;
            let _ = writeln!(
                out,
                "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.3\"/>"
            );
        }
        for (_, mark, points) in &self.marks {
            let path = marks(*mark, points.points.iter().map(|point| place(*point)));
            stroke(out, *mark, &path);
        }
    }

    /// From the right: what has points.
    fn legend(&self, out: &mut String, y: f64) {
        let lines = self.lines.iter().filter(|line| !line.points.points.is_empty());
        let lines = lines.map(|line| (line.name, None, line.colour));
        let marks = self.marks.iter().filter(|(.., points)| !points.points.is_empty());
        let marks = marks.map(|(name, mark, _)| (*name, Some(*mark), mark.colour()));
        let mut x = WIDTH - RIGHT;
        for (name, mark, colour) in marks.chain(lines) {
            x -= name.len() as f64 * LETTER;
            text(out, x, y, "start", 12, name);
            x -= 16.0;
            match mark {
                Some(mark) => stroke(out, mark, &mark.path(x + 6.0, y - 4.0)),
                None => {
                    let _ = writeln!(
                        out,
                        "<path d=\"M{x:.1} {:.1}h12\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                        y - 4.0
                    );
                }
            }
            x -= 14.0;
        }
    }
}

fn stroke(out: &mut String, mark: Mark, path: &str) {
    let (colour, width) = (mark.colour(), mark.stroke());
    let _ = writeln!(
        out,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
    );
}

/// One mark for each place of the picture.
fn marks(mark: Mark, points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut drawn = HashSet::new();
    let mut path = String::new();
    for (x, y) in points {
        if drawn.insert((x.round() as i64, y.round() as i64)) {
            path.push_str(&mark.path(x, y));
        }
    }
    path
}

/// Steps, with the least and the largest value of each column of the picture.
fn steps(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    let mut column: Option<(i64, f64, f64, f64)> = None;
    let draw = |path: &mut String, (x, low, high, last): (i64, f64, f64, f64)| {
        let command = if path.is_empty() { 'M' } else { 'H' };
        if command == 'M' {
            let _ = write!(path, "M{x} {low:.1}V{high:.1}V{last:.1}");
        } else {
            let _ = write!(path, "H{x}V{low:.1}V{high:.1}V{last:.1}");
        }
    };
    for (x, y) in points {
        let x = x.round() as i64;
        column = match column {
            Some((at, low, high, _)) if at == x => Some((at, low.min(y), high.max(y), y)),
            before => {
                if let Some(before) = before {
                    draw(&mut path, before);
                }
                Some((x, y, y, y))
            }
        };
    }
    if let Some(last) = column {
        draw(&mut path, last);
    }
    path
}

/// Round numbers from 0 to `most`, some `wanted` of them.
fn ticks(most: f64, wanted: f64) -> impl Iterator<Item = f64> {
    let rough = most / wanted.max(1.0);
    let power = 10_f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(power * 10.0);
    (0..=(most / step) as u64).map(move |count| count as f64 * step)
}

fn number(value: f64) -> String {
    let text = if value >= 100.0 || value == value.round() {
        format!("{value:.0}")
    } else {
        format!("{value:.6}")
    };
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"#222222\">{text}</text>"
    );
}
