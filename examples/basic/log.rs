//! The log of the library on standard error, as `RUST_LOG=kcpx=debug` asks for it. Programs of your own
//! use the crate tracing-subscriber; this takes no further crate.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Without `RUST_LOG`, errors only.
pub(crate) fn to_stderr() {
    let wanted = std::env::var("RUST_LOG").unwrap_or_default();
    // In `kcpx=debug` only the level matters; each event here comes from kcpx.
    let level = wanted.rsplit('=').next().and_then(|level| level.parse().ok());
    let level = level.unwrap_or(LevelFilter::ERROR);
    let log = Log { level, spans: Mutex::default(), last_id: AtomicU64::new(0) };
    // Fails when there is a subscriber, which is then the right one.
    drop(tracing::subscriber::set_global_default(log));
}

thread_local! {
    /// The spans that this thread is in.
    static ENTERED: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

struct Log {
    level: LevelFilter,
    spans: Mutex<HashMap<Id, OpenSpan>>,
    last_id: AtomicU64,
}

struct OpenSpan {
    /// As they are printed behind each event: of a connection, the peer and the conversation id.
    fields: String,
    handles: usize,
}

impl Log {
    fn spans(&self) -> MutexGuard<'_, HashMap<Id, OpenSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}:", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        let entered = ENTERED.with_borrow(Vec::clone);
        for span in
            entered.iter().filter_map(|id| self.spans().get(id).map(|span| span.fields.clone()))
        {
            line.0 += &span;
        }
        eprintln!("{}", line.0);
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut fields = Line(String::new());
        attributes.record(&mut fields);
        let id = Id::from_u64(self.last_id.fetch_add(1, Relaxed) + 1);
        self.spans().insert(id.clone(), OpenSpan { fields: fields.0, handles: 1 });
        id
    }

    fn clone_span(&self, id: &Id) -> Id {
        if let Some(span) = self.spans().get_mut(id) {
            span.handles += 1;
        }
        id.clone()
    }

    fn try_close(&self, id: Id) -> bool {
        let mut spans = self.spans();
        let Some(span) = spans.get_mut(&id) else { return false };
        span.handles -= 1;
        let last = span.handles == 0;
        if last {
            spans.remove(&id);
        }
        last
    }

    fn enter(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(id.clone()));
    }

    fn exit(&self, id: &Id) {
        ENTERED.with_borrow_mut(|entered| {
            if let Some(place) = entered.iter().rposition(|open| open == id) {
                entered.remove(place);
            }
        });
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
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
