//! The log of the library on standard error, as `RUST_LOG=kcpx=debug` asks for it. Programs of your own
//! use the crate tracing-subscriber; this takes no further crate.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Without `RUST_LOG`, errors only.
pub(crate) fn to_stderr() {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    // In `kcpx=debug` only the level matters; each event here comes from kcpx.
    let level = wanted.rsplit('=').next().and_then(|level| level.parse().ok());
    let log = Log { level: level.unwrap_or(LevelFilter::ERROR) };
    // Fails when there is a subscriber, which is then the right one.
    drop(tracing::subscriber::set_global_default(log));
}

struct Log {
    level: LevelFilter,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        eprintln!("{}", line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
