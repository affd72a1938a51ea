//! Pictures as PNG, with the letters of Noto Sans Mono in the program: no font of the system is needed.

use anyhow::{Context as _, Result};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{Color, Paint, PathBuilder, Pixmap, PremultipliedColorU8, Stroke, Transform};

use super::{Anchor, Canvas, Colour, INK, RING, Size, Step};

/// Steps that are drawn at once: the time for a path grows faster than its length.
const MOST_STEPS: usize = 512;

pub(super) struct Png(Pixmap);

impl Png {
    pub(super) fn new(width: f64, height: f64) -> Result<Self> {
        let pixels = Pixmap::new(width.ceil() as u32, height.ceil() as u32);
        let mut pixels = pixels.context("the picture is too large")?;
        pixels.fill(Color::WHITE);
        Ok(Self(pixels))
    }

    pub(super) fn finish(&self) -> Result<Vec<u8>> {
        Ok(self.0.encode_png()?)
    }

    /// Lays the colour of texts on a pixel; `cover` 255 hides all below.
    fn blend(&mut self, x: i64, y: i64, cover: u8) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        if x >= self.0.width() || y >= self.0.height() {
            return;
        }
        let index = (y * self.0.width() + x) as usize;
        let Some(pixel) = self.0.pixels_mut().get_mut(index) else { return };
        let mix = |below: u8, ink: u8| {
            let (cover, below) = (u32::from(cover), u32::from(below));
            ((u32::from(ink) * cover + below * (255 - cover)) / 255) as u8
        };
        let [_, red, green, blue] = INK.0.to_be_bytes();
        let mixed = PremultipliedColorU8::from_rgba(
            mix(pixel.red(), red),
            mix(pixel.green(), green),
            mix(pixel.blue(), blue),
            255,
        );
        *pixel = mixed.unwrap_or(*pixel);
    }

    fn stroke_part(&mut self, path: &[Step], Colour(colour): Colour, width: f64) {
        let mut builder = PathBuilder::new();
        for step in path {
            match *step {
                Step::Move(x, y) => builder.move_to(x as f32, y as f32),
                Step::Line(x, y) => builder.line_to(x as f32, y as f32),
                Step::Ring(x, y) => builder.push_circle(x as f32, y as f32, RING as f32),
            }
        }
        // A path without lines draws nothing.
        let Some(path) = builder.finish() else { return };
        let [_, red, green, blue] = colour.to_be_bytes();
        let mut paint = Paint::default();
        paint.set_color_rgba8(red, green, blue, 255);
        let stroke = Stroke { width: width as f32, ..Stroke::default() };
        self.0.stroke_path(&path, &paint, &stroke, Transform::identity(), None);
    }
}

impl Canvas for Png {
    fn stroke(&mut self, path: &[Step], colour: Colour, width: f64) {
        let mut rest = path;
        while !rest.is_empty() {
            // A line that is cut goes on where it ended.
            let len = rest.len().min(MOST_STEPS);
            let len = rest.get(len..).and_then(|rest| {
                let next = rest.iter().position(|step| !matches!(step, Step::Line(..)));
                next.map(|next| len + next)
            });
            let (part, after) = rest.split_at(len.unwrap_or(rest.len()));
            self.stroke_part(part, colour, width);
            rest = after;
        }
    }

    fn text(&mut self, x: f64, y: f64, anchor: Anchor, size: Size, text: &str) {
        let (height, line) = match size {
            Size::Normal => (RasterHeight::Size16, 13),
            Size::Title => (RasterHeight::Size20, 16),
        };
        let letter = get_raster_width(FontWeight::Regular, height) as i64;
        let left = anchor.start(x, (letter * text.chars().count() as i64) as f64).round() as i64;
        let top = y.round() as i64 - line;
        for (at, shown) in (0..).zip(text.chars()) {
            let raster = get_raster(shown, FontWeight::Regular, height)
                .or_else(|| get_raster('?', FontWeight::Regular, height));
            for (row, pixels) in (0..).zip(raster.iter().flat_map(|raster| raster.rows())) {
                for (column, cover) in (0..).zip(pixels) {
                    self.blend(left + at * letter + column, top + row, *cover);
                }
            }
        }
    }
}
