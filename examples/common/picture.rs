//! What the pictures of the examples have in common: an SVG document, its looks, and its axes.

use std::fmt::Write;

pub(crate) const WIDTH: f64 = 760.0;
/// Where a plot begins and ends, from left to right.
pub(crate) const LEFT: f64 = 64.0;
pub(crate) const RIGHT: f64 = WIDTH - 24.0;

/// Light by default, dark where the viewer prefers that; with a background of its own, so that it
/// can be read where the viewer has no preference to tell.
const STYLE: &str = "
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .page { fill: #ffffff }
    .title { font-size: 17px; font-weight: 600 }
    .note { fill: #59636e }
    .axis { stroke: #59636e }
    .grid { stroke: #d9dee3 }
    .bar { fill: #2f81c7 }
    .curve { fill: none; stroke: #2f81c7; stroke-width: 1.5; stroke-linejoin: round }
    .mark { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 5 3 }
    .mark-text { fill: #c2410c; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
        text { fill: #e6edf3 }
        .page { fill: #0d1117 }
        .note { fill: #9da7b3 }
        .axis { stroke: #9da7b3 }
        .grid { stroke: #2b333d }
        .bar { fill: #58a6ff }
        .curve { stroke: #58a6ff }
        .mark { stroke: #f0883e }
        .mark-text { fill: #f0883e }
    }
";

/// An SVG document that grows. Texts must not need escapes.
pub(crate) struct Picture {
    out: String,
}

impl Picture {
    pub(crate) fn new(height: f64, title: &str, note: &str) -> Self {
        let mut picture = Self { out: String::new() };
        picture.add(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" "#
        ));
        picture.add(format_args!(
            r#"width="{WIDTH}" height="{height}" role="img" aria-label="{title}">"#
        ));
        picture.add(format_args!("<style>{STYLE}</style>"));
        picture.add(format_args!(r#"<rect class="page" width="{WIDTH}" height="{height}"/>"#));
        picture.add(format_args!(r#"<text class="title" x="{LEFT}" y="28">{title}</text>"#));
        picture.add(format_args!(r#"<text class="note" x="{LEFT}" y="50">{note}</text>"#));
        picture
    }

    /// Adds an element as it is.
    pub(crate) fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.out, "{element}");
    }

    pub(crate) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    pub(crate) fn text(&mut self, class: &str, anchor: &str, x: f64, y: f64, content: &str) {
        self.add(format_args!(
            r#"<text class="{class}" text-anchor="{anchor}" x="{x:.1}" y="{y:.1}">{content}</text>"#
        ));
    }

    pub(crate) fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
}

/// The next 1, 2 or 5 times a power of ten.
pub(crate) fn round_step(least: f64) -> f64 {
    let magnitude = 10_f64.powf(least.max(0.000_001).log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= least);
    factor.unwrap_or(10.0) * magnitude
}

/// The label of a tick, without the digits that only come from counting in floating point.
pub(crate) fn number(value: f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}
