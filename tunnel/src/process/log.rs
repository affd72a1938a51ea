//! The log: lines with kcptun's date, to standard error or to a file that can be opened again.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::ZonedDateTime;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

/// Where the log goes. Clones share it.
///
/// ```
/// use kcpx_tunnel::process::Log;
///
/// # fn main() -> std::io::Result<()> {
/// let path = std::env::temp_dir().join(format!("kcpx-log-{}.txt", std::process::id()));
/// let log = Log::to_file(&path)?;
/// tracing::subscriber::with_default(log.subscriber(), || tracing::info!("listening"));
/// let text = std::fs::read_to_string(&path)?;
/// assert!(text.ends_with(" listening\n"));
/// # std::fs::remove_file(path)
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Log {
    path: Option<PathBuf>,
    file: Arc<Mutex<Option<File>>>,
}

impl Log {
    /// To standard error.
    #[must_use]
    pub fn to_stderr() -> Self {
        Self { path: None, file: Arc::default() }
    }

    /// Appends to a file, which is made if there is none.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let file = append_to(path)?;
        Ok(Self { path: Some(path.to_owned()), file: Arc::new(Mutex::new(Some(file))) })
    }

    /// Whether the log goes to a file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.path.is_some()
    }

    /// Opens the file again, after it was renamed. Lines go to the old one until then.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened; the log stays where it was.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.path {
            let file = append_to(path)?;
            *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        }
        Ok(())
    }

    /// A subscriber of `tracing` that writes events of level `INFO` and above here.
    pub fn subscriber(&self) -> impl Subscriber + Send + Sync + 'static {
        tracing_subscriber::fmt()
            // They would go to standard error, which may be what does not take lines.
            .log_internal_errors(false)
            .with_max_level(Level::INFO)
            .event_format(Line)
            .with_writer(self.clone())
            .finish()
    }
}

/// One line of the log is one write.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.file.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(file) => file.write(line),
            None => io::stderr().lock().write(line),
        }
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

fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// `2006/01/02 15:04:05 message`, as Go's package `log` has it; the level if it is not `INFO`.
struct Line;

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
        write!(writer, "{} ", ZonedDateTime::now().strftime("%Y/%m/%d %H:%M:%S"))?;
        let level = *event.metadata().level();
        if level < Level::INFO {
            write!(writer, "{level} ")?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use tracing::{debug, info, warn};

    use super::*;

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
        assert!(fs::read_to_string(moved.join("a.log")).unwrap().ends_with(" still\n"));
        assert!(Log::to_stderr().reopen().is_ok());
    }
}
