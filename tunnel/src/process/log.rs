//! The log: lines with kcptun's date, to standard error or to a file that can be reopened.
//!
//! A separate thread writes them, so that a stalled reader or disk blocks only that thread.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::ZonedDateTime;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Bytes of lines waiting to be written. Further lines are dropped and counted.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// Lines logged within [`MINUTE`] for one cause, a place in the source. Bounds the lines that a
/// peer can cause.
const MAX_LINES: u32 = 600;
const MINUTE: Duration = Duration::from_secs(60);

/// Target of the lines of [`run`](crate::run()): operators cause them, so each is logged.
const OPERATOR_TARGET: &str = "kcpx_tunnel::run";

/// Destination of the log. Clones share it.
///
/// Logging never waits: a thread writes the lines. Up to 1 MiB of lines may be queued; further
/// lines are dropped, and one line reports their number once half of the queue is written.
///
/// One cause, a place in the source, gets at most 600 lines a minute, and the same warning is
/// logged once a minute. Omitted lines are counted, and the next line of the cause is preceded by
/// their number. All lines of [`run`](crate::run()) are logged: they answer an operator's actions.
///
/// ```
/// use std::time::Duration;
///
/// use kcpx_tunnel::process::Log;
///
/// # fn main() -> std::io::Result<()> {
/// let path = std::env::temp_dir().join(format!("kcpx-log-{}.txt", std::process::id()));
/// let log = Log::to_file(&path)?;
/// tracing::subscriber::with_default(log.subscriber(), || tracing::info!("listening"));
/// log.flush(Duration::from_secs(10));
/// let text = std::fs::read_to_string(&path)?;
/// assert!(text.ends_with(" listening\n"));
/// # std::fs::remove_file(path)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Log {
    path: Option<PathBuf>,
    queue: Sender<Message>,
    state: Arc<State>,
}

/// Sent to the thread, in order.
enum Message {
    /// A line, including its newline.
    Line(Vec<u8>),
    /// Destination of later lines.
    Output(Box<dyn Write + Send>),
    /// Answered once all earlier lines are written.
    Flush(Sender<()>),
}

#[derive(Debug, Default)]
struct State {
    queued_bytes: AtomicUsize,
    /// Lines dropped since the last report.
    dropped_lines: AtomicU64,
}

impl Log {
    /// Logs to standard error.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn to_stderr() -> io::Result<Self> {
        Self::to_output(Box::new(io::stderr()))
    }

    /// Appends to a file, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or the thread cannot be started.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let log = Self::to_output(Box::new(append_to(path)?))?;
        Ok(Self { path: Some(path.to_owned()), ..log })
    }

    fn to_output(output: Box<dyn Write + Send>) -> io::Result<Self> {
        let (queue, messages) = mpsc::channel();
        let state = Arc::<State>::default();
        let shared = state.clone();
        let write = move || write_lines(&messages, output, &shared);
        // The thread ends with the last clone. The process does not wait for it, since it may be
        // blocked.
        drop(thread::Builder::new().name("log".into()).spawn(write)?);
        Ok(Self { path: None, queue, state })
    }

    /// Whether the log goes to a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.path.is_some()
    }

    /// Reopens the file, after it was renamed. Earlier lines go to the old file.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened; the log then keeps its old file.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.send(Message::Output(Box::new(append_to(path)?)));
        }
        Ok(())
    }

    /// Waits until all lines so far are written, at most `limit`. Blocks the calling thread: for
    /// the end of the process.
    pub fn flush(&self, limit: Duration) {
        let (written, wait) = mpsc::channel();
        self.send(Message::Flush(written));
        // An error means that the time is up.
        let _written = wait.recv_timeout(limit);
    }

    /// Returns a `tracing` subscriber that logs events of level `INFO` and above here.
    pub fn subscriber(&self) -> impl Subscriber + Send + Sync + 'static {
        tracing_subscriber::fmt()
            // They would go to standard error, which may be the stalled output.
            .log_internal_errors(false)
            .with_max_level(Level::INFO)
            .event_format(Line::default())
            .with_writer(self.clone())
            .finish()
    }

    fn send(&self, message: Message) {
        // The thread receives while there are clones.
        drop(self.queue.send(message));
    }
}

/// One line of the log is one write, which never blocks and never fails.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let (state, len) = (&self.state, line.len());
        let fits = |queued: usize| queued.checked_add(len).filter(|sum| *sum <= MAX_QUEUED_BYTES);
        let reserved = state.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if reserved.is_ok() {
            self.send(Message::Line(line.to_vec()));
        } else {
            state.dropped_lines.fetch_add(1, Ordering::Relaxed);
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

/// The thread of a log. Lines that cannot be written are lost: there is no place to report it.
fn write_lines(messages: &Receiver<Message>, mut output: Box<dyn Write + Send>, state: &State) {
    for message in messages {
        match message {
            Message::Line(line) => {
                drop(output.write_all(&line));
                let before = state.queued_bytes.fetch_sub(line.len(), Ordering::Relaxed);
                if before - line.len() <= MAX_QUEUED_BYTES / 2 {
                    report_dropped(&mut output, state);
                }
            }
            Message::Output(other) => output = other,
            // An error means that the caller no longer waits.
            Message::Flush(written) => drop(written.send(())),
        }
    }
}

fn report_dropped(output: &mut impl Write, state: &State) {
    let dropped = state.dropped_lines.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        let line = format!(
            "{} {} {dropped} lines of the log were dropped: they came faster than they were read\n",
            date(),
            Level::WARN
        );
        drop(output.write_all(line.as_bytes()));
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// The current date and time, in the format of Go's package `log`.
fn date() -> impl fmt::Display {
    ZonedDateTime::now().strftime("%Y/%m/%d %H:%M:%S").to_string()
}

/// `2006/01/02 15:04:05 message`, in the format of Go's package `log`; with the level if it is not
/// `INFO`.
#[derive(Default)]
struct Line {
    causes: Mutex<HashMap<Identifier, Cause>>,
}

/// The lines of one cause within a minute.
struct Cause {
    since: Instant,
    lines: u32,
    left_out: u64,
    /// The latest warning.
    warning: String,
}

impl Cause {
    fn new(now: Instant) -> Self {
        Self { since: now, lines: 0, left_out: 0, warning: String::new() }
    }

    /// Returns whether a line is logged, and if so the number of lines omitted before it.
    fn admit(&mut self, now: Instant, level: Level, text: &str) -> Option<u64> {
        let mut left_out = 0;
        if now.duration_since(self.since) >= MINUTE {
            left_out = self.left_out;
            *self = Self::new(now);
        }
        let is_same = level < Level::INFO && self.warning == text;
        if self.lines >= MAX_LINES || is_same {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        if level < Level::INFO {
            text.clone_into(&mut self.warning);
        }
        Some(left_out)
    }
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let (now, metadata) = (Instant::now(), event.metadata());
        let level = *metadata.level();
        let admitted = if metadata.target() == OPERATOR_TARGET {
            Some(0)
        } else {
            let mut causes = self.causes.lock().unwrap_or_else(PoisonError::into_inner);
            let cause = causes.entry(metadata.callsite()).or_insert_with(|| Cause::new(now));
            cause.admit(now, level, &text)
        };
        let Some(left_out) = admitted else { return Ok(()) };
        let date = date();
        let level = if level < Level::INFO { format!("{level} ") } else { String::new() };
        if left_out > 0 {
            writeln!(writer, "{date} {level}{left_out} lines like the next one were left out")?;
        }
        writeln!(writer, "{date} {level}{text}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tracing::{debug, info, warn};

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// An output that blocks until released, and records what it takes.
    struct Blocked {
        go_on: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // An error means that it no longer blocks.
            let _go_on = self.go_on.recv();
            drop(self.taken.send(bytes.to_vec()));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_do_not_fit_while_the_output_blocks_are_dropped_and_counted_in_one_line() {
        let (go_on, blocked) = mpsc::channel();
        let (taken, lines) = mpsc::channel();
        let log = Log::to_output(Box::new(Blocked { go_on: blocked, taken })).unwrap();
        let filler = "x".repeat(MAX_QUEUED_BYTES / 8);
        tracing::subscriber::with_default(log.subscriber(), || {
            // Seven lines fit with their dates, the eighth does not.
            for number in 0..20 {
                info!("{number} {filler}");
            }
            log.flush(Duration::from_millis(1));
            drop(go_on);
            log.flush(DEADLINE);
            info!("after");
            log.flush(DEADLINE);
        });
        drop(log);
        let text: String = lines.iter().map(|line| String::from_utf8(line).unwrap()).collect();
        let text = text.replace(&filler, "filler");
        let messages: Vec<_> = text.lines().map(|line| &line[20..]).collect();
        let mut expected: Vec<_> = (0..7).map(|number| format!("{number} filler")).collect();
        // Once half of the queue is written: after the fourth line.
        let report = "WARN 13 lines of the log were dropped: they came faster than they were read";
        expected.insert(4, report.into());
        expected.push("after".into());
        assert_eq!(messages, expected);
    }

    #[test]
    fn lines_of_one_cause_are_bounded_each_minute_and_counted() {
        let start = Instant::now();
        let mut cause = Cause::new(start);
        let lines = (0..1_000).filter_map(|number: u32| {
            cause.admit(start + MINUTE / 2, Level::INFO, &number.to_string())
        });
        assert_eq!(lines.collect::<Vec<_>>(), [0; 600]);
        assert_eq!(cause.admit(start + MINUTE, Level::INFO, "next"), Some(400));
        assert_eq!(cause.admit(start + MINUTE, Level::INFO, "next"), Some(0));
    }

    #[test]
    fn warning_that_is_same_is_logged_once_a_minute() {
        let start = Instant::now();
        let mut cause = Cause::new(start);
        let mut warn =
            |seconds, text| cause.admit(start + Duration::from_secs(seconds), Level::WARN, text);
        assert_eq!([warn(0, "full"), warn(1, "full"), warn(59, "full")], [Some(0), None, None]);
        assert_eq!([warn(60, "full"), warn(61, "full")], [Some(2), None]);
        assert_eq!([warn(62, "other"), warn(63, "full")], [Some(0), Some(0)]);
    }

    #[test]
    fn same_warnings_are_one_line_of_the_log() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a.log");
        let log = Log::to_file(&path).unwrap();
        tracing::subscriber::with_default(log.subscriber(), || {
            for _ in 0..10 {
                warn!("no descriptor");
            }
        });
        log.flush(DEADLINE);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.ends_with(" WARN no descriptor\n") && text.lines().count() == 1, "{text}");
    }

    #[test]
    fn same_answer_to_what_an_operator_does_is_logged_each_time() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a.log");
        let log = Log::to_file(&path).unwrap();
        tracing::subscriber::with_default(log.subscriber(), || {
            for _ in 0..2 {
                warn!(target: OPERATOR_TARGET, "reload: no file");
            }
        });
        log.flush(DEADLINE);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches(" WARN reload: no file\n").count(), 2, "{text}");
    }

    #[test]
    fn lines_have_the_date_of_kcptun_and_the_level_of_warnings() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("a.log");
        fs::write(&path, "before\n").unwrap();
        let log = Log::to_file(&path).unwrap();
        tracing::subscriber::with_default(log.subscriber(), || {
            info!("stream opened in: {}", 3);
            warn!("lost");
            debug!("unseen");
        });
        log.flush(DEADLINE);
        let text = fs::read_to_string(&path).unwrap();
        let [before, info, warn] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        assert_eq!(before, "before");
        let (date, message) = info.split_at(20);
        assert_eq!(message, "stream opened in: 3");
        jiff::civil::DateTime::strptime("%Y/%m/%d %H:%M:%S ", date).unwrap();
        assert_eq!(&warn[20..], "WARN lost");
    }

    #[test]
    fn reopened_log_goes_to_a_new_file_of_the_same_name() {
        let dir = TempDir::new().unwrap();
        let (path, old) = (dir.path().join("a.log"), dir.path().join("a.log.1"));
        let log = Log::to_file(&path).unwrap();
        tracing::subscriber::with_default(log.subscriber(), || {
            info!("one");
            fs::rename(&path, &old).unwrap();
            info!("two");
            log.reopen().unwrap();
            info!("three");
        });
        log.flush(DEADLINE);
        let old = fs::read_to_string(old).unwrap();
        assert!(old.contains(" one\n") && old.ends_with(" two\n"), "{old}");
        let new = fs::read_to_string(path).unwrap();
        assert!(new.ends_with(" three\n") && new.lines().count() == 1, "{new}");
    }

    #[test]
    fn log_in_a_missing_folder_is_an_error_and_reopening_keeps_the_old_file() {
        let dir = TempDir::new().unwrap();
        assert!(Log::to_file(&dir.path().join("missing/a.log")).is_err());
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).unwrap();
        let log = Log::to_file(&folder.join("a.log")).unwrap();
        let moved = dir.path().join("moved");
        fs::rename(&folder, &moved).unwrap();
        assert!(log.reopen().is_err());
        tracing::subscriber::with_default(log.subscriber(), || info!("still"));
        log.flush(DEADLINE);
        assert!(fs::read_to_string(moved.join("a.log")).unwrap().ends_with(" still\n"));
        assert!(Log::to_stderr().unwrap().reopen().is_ok());
    }
}
