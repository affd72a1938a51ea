//! Charts over time: panels above each other with one time axis.

mod png;
mod svg;

use std::collections::HashSet;

use anyhow::Result;

use self::png::Png;
use self::svg::Svg;

const WIDTH: f64 = 1_200.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
const HEAD: f64 = 64.0;
/// Between panels, for the label and the legend of the next one.
const GAP: f64 = 58.0;
const FOOT: f64 = 50.0;
const INNER: f64 = WIDTH - LEFT - RIGHT;
/// Seconds of a picture of one moment.
const SHORTEST: f64 = 1e-3;
/// What the axis of a panel reaches even without points.
const LEAST: f64 = 5.0;
/// Radius of a ring.
const RING: f64 = 3.0;
/// Of texts, axes and the lines behind the data.
const INK: Colour = Colour(0x22_22_22);
const GRID: Colour = Colour(0xe5_e5_e5);

/// Points of one kind that are kept; beyond that every second one goes, again and again.
const MAX_POINTS: usize = 1 << 20;

/// Red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour(pub(crate) u32);

/// A step of a path.
#[derive(Clone, Copy, Debug)]
enum Step {
    Move(f64, f64),
    Line(f64, f64),
    /// A ring around this point.
    Ring(f64, f64),
}

/// Texts have a font whose letters are equally wide, so that none runs into another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Normal,
    Title,
}

impl Size {
    /// Width of a letter.
    fn letter(self) -> f64 {
        match self {
            Self::Normal => 7.2,
            Self::Title => 9.0,
        }
    }

    fn width(self, text: &str) -> f64 {
        text.chars().count() as f64 * self.letter()
    }
}

/// Where the given place of a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    /// Where a text of this width begins.
    fn start(self, x: f64, width: f64) -> f64 {
        match self {
            Self::Start => x,
            Self::Middle => x - width / 2.0,
            Self::End => x - width,
        }
    }
}

/// A picture that is being drawn, white at first.
trait Canvas {
    fn stroke(&mut self, path: &[Step], colour: Colour, width: f64);

    /// `y` is the line on which the letters stand.
    fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: Size, text: &str);
}

/// Values over time, of which every second one goes when there are too many.
#[derive(Debug)]
pub(crate) struct Points {
    points: Vec<(f64, f64)>,
    /// Of this many values in a row the last one is kept.
    every: u64,
    seen: u64,
}

impl Points {
    pub(crate) fn new() -> Self {
        Self { points: Vec::new(), every: 1, seen: 0 }
    }

    pub(crate) fn push(&mut self, at: f64, value: f64) {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return;
        }
        self.points.push((at, value));
        if self.points.len() > MAX_POINTS {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.every *= 2;
        }
    }

    #[cfg(test)]
    pub(crate) fn values(&self) -> &[(f64, f64)] {
        &self.points
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
    Tick(Colour),
    Cross(Colour),
    Plus(Colour),
    Dot(Colour),
    Ring(Colour),
    Diamond(Colour),
}

impl Mark {
    /// Appends the mark of a point.
    fn draw(self, path: &mut Vec<Step>, x: f64, y: f64) {
        use Step::{Line, Move, Ring};
        match self {
            Self::Tick(_) => path.extend([Move(x, y - 1.5), Line(x, y + 1.5)]),
            Self::Cross(_) => path.extend([
                Move(x - 3.0, y - 3.0),
                Line(x + 3.0, y + 3.0),
                Move(x + 3.0, y - 3.0),
                Line(x - 3.0, y + 3.0),
            ]),
            Self::Plus(_) => path.extend([
                Move(x - 4.0, y),
                Line(x + 4.0, y),
                Move(x, y - 4.0),
                Line(x, y + 4.0),
            ]),
            Self::Dot(_) => path.extend([Move(x - 1.0, y), Line(x + 1.0, y)]),
            Self::Ring(_) => path.push(Ring(x, y)),
            Self::Diamond(_) => path.extend([
                Move(x - 4.0, y),
                Line(x, y - 4.0),
                Line(x + 4.0, y),
                Line(x, y + 4.0),
                Line(x - 4.0, y),
            ]),
        }
    }

    /// As it looks in a picture: the small ones in a row.
    fn sample(self, path: &mut Vec<Step>, x: f64, y: f64) {
        match self {
            Self::Tick(_) | Self::Dot(_) => {
                [1.0, 4.0, 7.0, 10.0].into_iter().for_each(|right| self.draw(path, x + right, y));
            }
            _ => self.draw(path, x + 5.0, y),
        }
    }

    pub(crate) fn colour(self) -> Colour {
        let (Self::Tick(colour)
        | Self::Cross(colour)
        | Self::Plus(colour)
        | Self::Dot(colour)
        | Self::Ring(colour)
        | Self::Diamond(colour)) = self;
        colour
    }

    /// Width of its lines.
    fn width(self) -> f64 {
        match self {
            Self::Tick(_) | Self::Ring(_) | Self::Diamond(_) => 1.2,
            Self::Cross(_) | Self::Plus(_) => 1.6,
            Self::Dot(_) => 2.0,
        }
    }
}

/// A line that keeps its value until the next point.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) colour: Colour,
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
    /// Of the time that is drawn.
    pub(crate) seconds: f64,
    pub(crate) panels: Vec<Panel>,
}

impl Figure {
    pub(crate) fn svg(&self) -> String {
        let mut svg = Svg::new(WIDTH, self.height());
        self.draw(&mut svg);
        svg.finish()
    }

    pub(crate) fn png(&self) -> Result<Vec<u8>> {
        let mut png = Png::new(WIDTH, self.height())?;
        self.draw(&mut png);
        png.finish()
    }

    /// The texts, each with its left, upper, right and lower edge.
    #[cfg(test)]
    pub(crate) fn texts(&self) -> Vec<(String, [f64; 4])> {
        let mut texts = Texts(Vec::new());
        self.draw(&mut texts);
        let mut page = vec![("the page".to_owned(), [0.0, 0.0, WIDTH, self.height()])];
        page.append(&mut texts.0);
        page
    }

    fn height(&self) -> f64 {
        HEAD + FOOT + self.panels.iter().map(|panel| panel.height + GAP).sum::<f64>()
    }

    fn draw(&self, canvas: &mut impl Canvas) {
        let end = self.seconds.max(SHORTEST);
        canvas.text(LEFT, 28.0, Anchor::Start, Size::Title, &self.title);
        canvas.text(LEFT, 50.0, Anchor::Start, Size::Normal, &self.note);
        let mut top = HEAD;
        for panel in &self.panels {
            top += GAP;
            panel.draw(canvas, top, end);
            top += panel.height;
        }
        for tick in ticks(end, 10.0) {
            let x = LEFT + tick / end * INNER;
            canvas.stroke(&[Step::Move(x, top), Step::Line(x, top + 5.0)], INK, 1.0);
            canvas.text(x, top + 20.0, Anchor::Middle, Size::Normal, &number(tick));
        }
        canvas.text(LEFT + INNER / 2.0, top + 40.0, Anchor::Middle, Size::Normal, "seconds");
    }
}

impl Panel {
    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        let lines = self.lines.iter().flat_map(|line| &line.points.points);
        lines.chain(self.marks.iter().flat_map(|(.., points)| &points.points))
    }

    fn draw(&self, canvas: &mut impl Canvas, top: f64, end: f64) {
        use Step::{Line, Move};
        let most = self.points().map(|(_, value)| *value).fold(LEAST, f64::max) * 1.05;
        let bottom = top + self.height;
        let place = |(at, value): (f64, f64)| {
            (LEFT + at / end * INNER, bottom - value / most * self.height)
        };
        for tick in ticks(most, self.height / 45.0) {
            let (_, y) = place((0.0, tick));
            canvas.stroke(&[Move(LEFT, y), Line(WIDTH - RIGHT, y)], GRID, 1.0);
            canvas.text(LEFT - 8.0, y + 4.0, Anchor::End, Size::Normal, &number(tick));
        }
        let axes = [Move(LEFT, top), Line(LEFT, bottom), Line(WIDTH - RIGHT, bottom)];
        canvas.stroke(&axes, INK, 1.0);
        canvas.text(LEFT, top - 28.0, Anchor::Start, Size::Normal, self.label);
        self.legend(canvas, top - 9.0);
        for line in &self.lines {
            let path = steps(line.points.points.iter().map(|point| place(*point)));
            canvas.stroke(&path, line.colour, 1.3);
        }
        for (_, mark, points) in &self.marks {
            let path = marks(*mark, points.points.iter().map(|point| place(*point)));
            canvas.stroke(&path, mark.colour(), mark.width());
        }
    }

    /// Under the label: the names of all that has points.
    fn legend(&self, canvas: &mut impl Canvas, y: f64) {
        let mut x = LEFT;
        for (name, sample) in self.names() {
            let middle = y - 4.0;
            match sample {
                Sample::Mark(mark) => {
                    let mut path = Vec::new();
                    mark.sample(&mut path, x, middle);
                    canvas.stroke(&path, mark.colour(), mark.width());
                }
                Sample::Line(colour) => {
                    let path = [Step::Move(x, middle), Step::Line(x + 10.0, middle)];
                    canvas.stroke(&path, colour, 2.0);
                }
            }
            canvas.text(x + SAMPLE, y, Anchor::Start, Size::Normal, name);
            x += SAMPLE + Size::Normal.width(name) + BETWEEN_NAMES;
        }
    }

    fn names(&self) -> impl Iterator<Item = (&'static str, Sample)> {
        let marks = self.marks.iter().filter(|(.., points)| !points.points.is_empty());
        let marks = marks.map(|(name, mark, _)| (*name, Sample::Mark(*mark)));
        let lines = self.lines.iter().filter(|line| !line.points.points.is_empty());
        marks.chain(lines.map(|line| (line.name, Sample::Line(line.colour))))
    }
}

/// Of a legend: the width of a sample, and the room behind a name.
const SAMPLE: f64 = 17.0;
const BETWEEN_NAMES: f64 = 14.0;

enum Sample {
    Mark(Mark),
    Line(Colour),
}

/// One mark for each place of the picture.
fn marks(mark: Mark, points: impl Iterator<Item = (f64, f64)>) -> Vec<Step> {
    let mut drawn = HashSet::new();
    let mut path = Vec::new();
    for (x, y) in points {
        if drawn.insert((x.round() as i64, y.round() as i64)) {
            mark.draw(&mut path, x, y);
        }
    }
    path
}

/// Steps, with the least and the largest value of each column of the picture.
fn steps(points: impl Iterator<Item = (f64, f64)>) -> Vec<Step> {
    let mut path = Vec::new();
    let mut column: Option<Column> = None;
    for (x, y) in points {
        let x = x.round();
        match &mut column {
            Some(column) if column.x == x => {
                (column.low, column.high, column.last) = (column.low.min(y), column.high.max(y), y);
            }
            _ => {
                let before = column.replace(Column { x, low: y, high: y, last: y });
                before.into_iter().for_each(|before| before.draw(&mut path));
            }
        }
    }
    column.into_iter().for_each(|last| last.draw(&mut path));
    path
}

/// The part of a line in one column of the picture.
struct Column {
    x: f64,
    low: f64,
    high: f64,
    last: f64,
}

impl Column {
    fn draw(&self, path: &mut Vec<Step>) {
        use Step::{Line, Move};
        match path.last() {
            Some(&(Move(_, y) | Line(_, y))) => path.push(Line(self.x, y)),
            _ => path.push(Move(self.x, self.low)),
        }
        // Most columns have one value.
        for y in [self.low, self.high, self.last] {
            if !matches!(path.last(), Some(&(Move(_, before) | Line(_, before))) if before == y) {
                path.push(Line(self.x, y));
            }
        }
    }
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

#[cfg(test)]
struct Texts(Vec<(String, [f64; 4])>);

#[cfg(test)]
impl Canvas for Texts {
    fn stroke(&mut self, _: &[Step], _: Colour, _: f64) {}

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: Size, text: &str) {
        let width = size.width(text);
        let left = anchor.start(x, width);
        let edges = [left, y - size.letter() * 1.4, left + width, y + size.letter() * 0.4];
        self.0.push((text.to_owned(), edges));
    }
}
