//! Line charts with a logarithmic scale, since transports differ by orders of magnitude.

use std::fmt::Write as _;

use super::{MARGIN, STYLE, TITLE, WIDTH, escaped};

const HEIGHT: f64 = 420.0;
/// Space for the figures of the scale on the left and the names of the lines on the right.
const SCALE: f64 = 60.0;
const NAMES: f64 = 190.0;
/// Space for the names of the places below.
const PLACES: f64 = 34.0;
/// Between the baselines of two names.
const NAME_HEIGHT: f64 = 16.0;
/// Legible on light and on dark pages.
const OURS: &str = "#0969da";
/// The colours of the other lines.
const COLOURS: [&str; 8] =
    ["#bc4c00", "#8250df", "#1a7f37", "#bf3989", "#9a6700", "#6e7781", "#cf222e", "#1b7c83"];

pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) ours: bool,
    /// One for each place; `None` for what could not be measured.
    pub(crate) values: Vec<Option<f64>>,
}

/// `None` when there is nothing above 0 to draw.
pub(crate) fn svg(title: &str, places: &[String], lines: &[Line]) -> Option<String> {
    let area = Area::of(places.len(), lines)?;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n<title>{title}</title>\n\
         <style>{STYLE}\n.grid {{ stroke: #8c959f; stroke-opacity: 0.3; }}\n\
         .line {{ fill: none; stroke-width: 2; }}\n.thick {{ stroke-width: 3; }}</style>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"{y}\">{title}</text>\n",
        title = escaped(title),
        y = MARGIN + 16,
    );
    area.grid(&mut out, places);
    let mut colours = COLOURS.iter().cycle();
    let mut names = Vec::new();
    for line in lines {
        let colour = if line.ours { OURS } else { colours.next().copied().unwrap_or(OURS) };
        if let Some(end) = area.line(&mut out, line, colour) {
            names.push((end, line.label.as_str(), colour));
        }
    }
    area.names(&mut out, names);
    out.push_str("</svg>\n");
    Some(out)
}

/// The places of values in the picture.
struct Area {
    places: usize,
    /// Logarithms to base 10.
    least: f64,
    most: f64,
}

impl Area {
    const TOP: f64 = (MARGIN + TITLE) as f64;
    const BOTTOM: f64 = HEIGHT - PLACES;
    const LEFT: f64 = MARGIN as f64 + SCALE;
    const RIGHT: f64 = (WIDTH - MARGIN) as f64 - NAMES;

    fn of(places: usize, lines: &[Line]) -> Option<Self> {
        let values = || lines.iter().flat_map(|line| &line.values).flatten().copied();
        let logarithms = || values().filter(|value| *value > 0.0).map(f64::log10);
        let least = logarithms().reduce(f64::min)?;
        let most = logarithms().reduce(f64::max)?;
        // A twentieth of a decade around them, so that equal values have a height as well.
        Some(Self { places, least: least - 0.05, most: most + 0.05 })
    }

    fn x(&self, place: usize) -> f64 {
        let steps = self.places.saturating_sub(1).max(1) as f64;
        Self::LEFT + (Self::RIGHT - Self::LEFT) * place as f64 / steps
    }

    fn y(&self, value: f64) -> f64 {
        let part = (value.log10() - self.least) / (self.most - self.least);
        Self::BOTTOM - (Self::BOTTOM - Self::TOP) * part
    }

    fn grid(&self, out: &mut String, places: &[String]) {
        let (left, right, bottom) = (Self::LEFT, Self::RIGHT, Self::BOTTOM);
        for value in self.ticks() {
            let y = self.y(value);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\n\
                 <text class=\"value\" x=\"{x}\" y=\"{baseline:.1}\" text-anchor=\"end\">{value}\
                 </text>",
                x = left - 8.0,
                baseline = y + 4.0,
            );
        }
        for (place, name) in places.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text class=\"group\" x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{name}</text>",
                x = self.x(place),
                y = bottom + 22.0,
                name = escaped(name),
            );
        }
    }

    /// 1, 2 and 5 of each decade, as far as they are in the picture.
    fn ticks(&self) -> Vec<f64> {
        let decades = self.least.floor() as i32..=self.most.ceil() as i32;
        let ticks = decades.flat_map(|decade| {
            let value = |digit: f64| {
                let power = 10_f64.powi(decade.abs());
                if decade < 0 { digit / power } else { digit * power }
            };
            [1.0, 2.0, 5.0].map(value)
        });
        ticks.filter(|tick| (self.least..=self.most).contains(&tick.log10())).collect()
    }

    /// Draws a line with its gaps, and returns the height of its last value.
    fn line(&self, out: &mut String, line: &Line, colour: &str) -> Option<f64> {
        let points: Vec<Option<(f64, f64)>> = line
            .values
            .iter()
            .enumerate()
            .map(|(place, value)| {
                value.filter(|value| *value > 0.0).map(|value| (self.x(place), self.y(value)))
            })
            .collect();
        let class = if line.ours { "line thick" } else { "line" };
        for part in points.split(Option::is_none).filter(|part| part.len() > 1) {
            let _ = write!(out, "<polyline class=\"{class}\" stroke=\"{colour}\" points=\"");
            for (x, y) in part.iter().flatten() {
                let _ = write!(out, "{x:.1},{y:.1} ");
            }
            out.push_str("\"/>\n");
        }
        for (x, y) in points.iter().flatten() {
            let _ =
                writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        points.iter().flatten().last().map(|(_, y)| *y)
    }

    /// Names at the ends of their lines, moved apart where those are close.
    fn names(&self, out: &mut String, mut names: Vec<(f64, &str, &str)>) {
        names.sort_by(|one, other| one.0.total_cmp(&other.0));
        let count = names.len();
        let mut least = Self::TOP;
        for (place, (y, label, colour)) in names.into_iter().enumerate() {
            // The names below still have to fit in.
            let most = Self::BOTTOM - (count - 1 - place) as f64 * NAME_HEIGHT;
            let y = y.max(least).min(most.max(least));
            least = y + NAME_HEIGHT;
            let _ = writeln!(
                out,
                "<circle cx=\"{x}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>\n\
                 <text x=\"{text}\" y=\"{baseline:.1}\">{label}</text>",
                x = Self::RIGHT + 16.0,
                text = Self::RIGHT + 26.0,
                baseline = y + 4.0,
                label = escaped(label),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(label: &str, values: &[Option<f64>]) -> Line {
        Line { label: label.into(), ours: label == "kcpx", values: values.to_vec() }
    }

    fn points(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
        let points = lines.map(|line| line.split("points=\"").nth(1).unwrap());
        let point = |text: &str| {
            let (x, y) = text.split_once(',').unwrap();
            (x.parse().unwrap(), y.trim_matches('"').parse().unwrap())
        };
        points
            .map(|text| text.trim_end_matches("\"/>").split_whitespace().map(point).collect())
            .collect()
    }

    #[test]
    fn equal_factors_are_equal_heights() {
        let places = ["0 %", "1 %", "5 %"].map(str::to_owned);
        let lines = [line("kcpx", &[Some(10.0), Some(100.0), Some(1_000.0)])];
        let svg = svg("latency", &places, &lines).unwrap();
        let [(x0, y0), (x1, y1), (x2, y2)] = points(&svg)[0][..] else { panic!("{svg}") };
        assert!(((y0 - y1) - (y1 - y2)).abs() < 0.2 && y0 > y1, "{y0} {y1} {y2}");
        assert!(((x1 - x0) - (x2 - x1)).abs() < 0.2 && x0 < x1, "{x0} {x1} {x2}");
        for tick in ["10", "20", "50", "100", "500", "1000"] {
            assert!(svg.contains(&format!("end\">{tick}</text>")), "{tick}: {svg}");
        }
    }

    #[test]
    fn missing_values_are_gaps_and_names_keep_their_distance() {
        let places = ["a", "b", "c", "d"].map(str::to_owned);
        let all = |value| [Some(value); 4];
        let lines = [
            line("kcpx", &[Some(1.0), Some(1.0), None, Some(1.0)]),
            line("a < b", &all(1.0)),
            line("other", &all(1.01)),
            line("never", &[None; 4]),
        ];
        let svg = svg("x & y", &places, &lines).unwrap();
        assert_eq!(points(&svg).iter().map(Vec::len).collect::<Vec<_>>(), [2, 4, 4]);
        assert!(svg.contains("x &amp; y") && svg.contains("a &lt; b") && !svg.contains("never"));
        let mut names: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<circle") && line.contains("r=\"4\""))
            .map(|line| line.split("cy=\"").nth(1).unwrap().split('"').next().unwrap())
            .map(|y| y.parse().unwrap())
            .collect();
        names.sort_by(f64::total_cmp);
        assert!(names.windows(2).all(|pair| pair[1] - pair[0] > NAME_HEIGHT - 0.2), "{names:?}");
    }

    #[test]
    fn nothing_measured_is_no_chart() {
        assert!(svg("x", &["a".into()], &[line("kcpx", &[None])]).is_none());
        assert!(svg("x", &[], &[]).is_none());
    }
}
