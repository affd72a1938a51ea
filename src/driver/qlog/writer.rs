//! The queue between a driver and the thread that writes its logs.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::core::qlog::log::Log;
use crate::trace;

/// Most bytes that wait for the thread. Another queue of this size may be on its way to the disk.
const MAX_QUEUED: usize = 4 << 20;
/// Bytes that a file to open or close counts for.
const FILE_COST: usize = 256;
/// Files that are open at once. The application needs descriptors too.
const MAX_FILES: usize = 256;
/// How long the thread collects records before it writes them, unless the queue is half full.
const COLLECT_TIME: Duration = Duration::from_millis(100);
/// Longest time that the end of an endpoint waits for the disk.
const END_WAIT: Duration = Duration::from_secs(1);

/// Why records are not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The disk is slower than the connections.
    Full,
    /// [`MAX_FILES`] connections have a log.
    TooMany,
    /// Nothing is written any more, after an error.
    Ended,
}

/// A step of the thread. Files are named by the id of their log.
#[derive(Debug)]
enum Step {
    Create {
        id: u64,
        name: String,
    },
    /// The next `len` bytes of the queue.
    Append {
        id: u64,
        len: usize,
    },
    Close {
        id: u64,
    },
}

#[derive(Debug, Default)]
struct Queue {
    steps: Vec<Step>,
    bytes: Vec<u8>,
    /// Open files once the steps are done.
    files: usize,
    /// [`MAX_FILES`] were open before.
    was_at_limit: bool,
    /// The driver has ended.
    is_closed: bool,
    /// The thread has ended after an error.
    has_failed: bool,
}

impl Queue {
    fn len(&self) -> usize {
        self.bytes.len() + self.steps.len() * FILE_COST
    }

    fn is_half_full(&self) -> bool {
        self.len() >= MAX_QUEUED / 2
    }

    fn append(&mut self, log: &mut Log) -> Result<(), Refused> {
        if self.has_failed {
            return Err(Refused::Ended);
        }
        let (id, head) = (log.id, log.head.as_ref().map_or(0, |head| head.record.len()));
        let len = log.records().len();
        if len == 0 {
            return Ok(());
        }
        if self.len() + head + len + 2 * FILE_COST > MAX_QUEUED {
            return Err(Refused::Full);
        }
        if log.head.is_some() && self.files == MAX_FILES {
            if !mem::replace(&mut self.was_at_limit, true) {
                trace::qlog_limit(MAX_FILES);
            }
            return Err(Refused::TooMany);
        }
        if let Some(head) = log.head.take() {
            self.files += 1;
            self.steps.push(Step::Create { id, name: head.name });
            self.push(id, &head.record);
        }
        self.push(id, log.records());
        log.clear();
        Ok(())
    }

    fn push(&mut self, id: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        match self.steps.last_mut() {
            Some(Step::Append { id: last, len }) if *last == id => *len += bytes.len(),
            _ => self.steps.push(Step::Append { id, len: bytes.len() }),
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges the queue for an empty one once there is something to write; `false` at the end.
    fn take(&self, taken: &mut Queue) -> bool {
        taken.steps.clear();
        taken.bytes.clear();
        let idle = |queue: &mut Queue| queue.steps.is_empty() && !queue.is_closed;
        let queue = self.lock();
        let queue = self.wake.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        let collects = |queue: &mut Queue| !queue.is_half_full() && !queue.is_closed;
        let collected = self.wake.wait_timeout_while(queue, COLLECT_TIME, collects);
        let (mut queue, _) = collected.unwrap_or_else(PoisonError::into_inner);
        mem::swap(&mut queue.steps, &mut taken.steps);
        mem::swap(&mut queue.bytes, &mut taken.bytes);
        !taken.steps.is_empty()
    }
}

/// The driver's end. Its drop has the rest written.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// Disconnected once the thread has ended.
    ended: Receiver<()>,
    ids: u64,
}

impl Writer {
    /// Starts the thread that writes into `folder`.
    ///
    /// # Errors
    ///
    /// If no file can be created there.
    pub(super) fn start(folder: &Path) -> io::Result<Self> {
        check(folder).map_err(|error| {
            let text = format!(
                "qlog folder {} must exist and be writable: create it, or choose another ({error})",
                folder.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        let folder = folder.to_path_buf();
        Self::spawn(folder.clone(), move |name| Ok(create(&folder, name)?.1))
    }

    fn spawn<W: Write>(
        folder: PathBuf,
        create: impl FnMut(&str) -> io::Result<W> + Send + 'static,
    ) -> io::Result<Self> {
        let (shared, (ending, ended)) = (Arc::new(Shared::default()), mpsc::channel());
        let thread = thread::Builder::new().name("kcpx-qlog".to_owned());
        let queue = shared.clone();
        thread.spawn(move || {
            // Dropped with the thread.
            let _ending = ending;
            run(&queue, &folder, create);
        })?;
        Ok(Self { shared, ended, ids: 0 })
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    /// Takes the records of `log`.
    pub(super) fn append(&self, log: &mut Log) -> Result<(), Refused> {
        let mut queue = self.shared.lock();
        let (was_empty, was_half_full) = (queue.steps.is_empty(), queue.is_half_full());
        queue.append(log)?;
        let wakes = was_empty || (queue.is_half_full() && !was_half_full);
        drop(queue);
        if wakes {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// No records of `log` follow.
    pub(super) fn close(&self, log: &Log) {
        if log.head.is_none() {
            let mut queue = self.shared.lock();
            queue.steps.push(Step::Close { id: log.id });
            queue.files = queue.files.saturating_sub(1);
            drop(queue);
            self.shared.wake.notify_one();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.wake.notify_one();
        // Without an answer in time the thread goes on alone.
        let _ = self.ended.recv_timeout(END_WAIT);
    }
}

/// Writes what the driver appends until it ends, or until the first error.
fn run<W: Write>(shared: &Shared, folder: &Path, mut create: impl FnMut(&str) -> io::Result<W>) {
    let (mut taken, mut files) = (Queue::default(), HashMap::new());
    while shared.take(&mut taken) {
        if let Err(error) = write(&taken, &mut files, &mut create) {
            *shared.lock() = Queue { has_failed: true, ..Queue::default() };
            trace::qlog_failed(folder, &error);
            return;
        }
    }
}

fn write<W: Write>(
    queue: &Queue,
    files: &mut HashMap<u64, W>,
    create: &mut impl FnMut(&str) -> io::Result<W>,
) -> io::Result<()> {
    let mut rest = queue.bytes.as_slice();
    for step in &queue.steps {
        match step {
            Step::Create { id, name } => drop(files.insert(*id, create(name)?)),
            Step::Append { id, len } => {
                let (bytes, after) = rest.split_at_checked(*len).unwrap_or_default();
                rest = after;
                if let Some(file) = files.get_mut(id) {
                    file.write_all(bytes)?;
                }
            }
            Step::Close { id } => {
                if let Some(mut file) = files.remove(id) {
                    file.flush()?;
                }
            }
        }
    }
    Ok(())
}

/// Creates and removes a file.
fn check(folder: &Path) -> io::Result<()> {
    let (path, file) = create(folder, ".kcpx")?;
    drop(file);
    fs::remove_file(path)
}

/// Creates the file `name`, or `name` with a number if that exists.
fn create(folder: &Path, name: &str) -> io::Result<(PathBuf, File)> {
    let mut number = 1;
    loop {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = folder.join(format!("{name}{suffix}.sqlog"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            opened => return Ok((path, opened?)),
        }
    }
}

/// Microseconds since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "logs of several hosts are compared by wall time")]
pub(super) fn unix_micros() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::sync::mpsc::{RecvTimeoutError, Sender};
    use std::time::Instant;

    use super::*;
    use crate::core::qlog::log::RECORD_SEPARATOR;
    use crate::core::qlog::log::tests::{add_event, log};
    use crate::error::ConnectionError;
    use crate::testkit::folder::Folder;

    /// Longest wait for the thread.
    const DEADLINE: Duration = Duration::from_secs(20);

    /// Appends events until the writer has ended, and waits for the end of its thread.
    fn append_until_ended(writer: &Writer, log: &mut Log) {
        loop {
            add_event(log);
            match writer.append(log) {
                Err(Refused::Ended) => break,
                Err(Refused::Full | Refused::TooMany) => log.drop_records(),
                Ok(()) => thread::yield_now(),
            }
        }
        let ended = writer.ended.recv_timeout(DEADLINE);
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "the thread goes on");
    }

    #[test]
    fn queue_takes_four_mebibytes_and_no_more() {
        const LIMIT: usize = 4 << 20;
        for (over, taken) in [(0, Ok(())), (1, Err(Refused::Full))] {
            let mut log = log(1, true);
            add_event(&mut log);
            let head = log.head.as_ref().map_or(0, |head| head.record.len());
            // The creation of the file and the records are a step each.
            let added = head + log.records().len() + 2 * 256;
            let before = LIMIT - added + over;
            let mut queue = Queue { bytes: vec![0; before], ..Queue::default() };
            assert_eq!(queue.append(&mut log), taken);
            assert_eq!(queue.len(), if taken.is_ok() { LIMIT } else { before });
            assert_eq!(log.records().is_empty(), taken.is_ok());
        }
        let half = |len| Queue { bytes: vec![0; len], ..Queue::default() }.is_half_full();
        assert_eq!([LIMIT / 2 - 1, LIMIT / 2].map(half), [false, true]);
    }

    #[test]
    fn first_records_and_half_a_queue_wake_a_thread_that_waits() {
        let filled = |len| Queue {
            steps: vec![Step::Close { id: 0 }],
            bytes: vec![0; len],
            ..Queue::default()
        };
        for queue in [Queue::default(), filled(MAX_QUEUED / 2 - 2 * FILE_COST)] {
            let shared = Arc::new(Shared { queue: Mutex::new(queue), ..Shared::default() });
            let (ending, ended) = mpsc::channel();
            let writer = Writer { shared: shared.clone(), ended, ids: 0 };
            let thread = thread::spawn(move || {
                let queue = shared.lock();
                // The lock is free again once this thread waits.
                ending.send(()).unwrap();
                !shared.wake.wait_timeout(queue, DEADLINE).unwrap().1.timed_out()
            });
            writer.ended.recv().unwrap();
            let mut log = log(1, true);
            add_event(&mut log);
            writer.append(&mut log).unwrap();
            assert!(thread.join().unwrap());
        }
    }

    #[test]
    fn records_in_a_row_of_one_log_are_one_step() {
        let mut queue = Queue::default();
        let mut logs = [1, 2].map(|id| log(id, true));
        let mut bytes = 0;
        for at in [0, 0, 0, 1, 1, 0] {
            add_event(&mut logs[at]);
            let head = logs[at].head.as_ref().map_or(0, |head| head.record.len());
            bytes += head + logs[at].records().len();
            queue.append(&mut logs[at]).unwrap();
        }
        // Two creations, and three runs of records.
        assert_eq!(queue.len(), bytes + 5 * FILE_COST);
        assert_eq!(queue.append(&mut logs[0]), Ok(()), "no records");
        assert_eq!(queue.len(), bytes + 5 * FILE_COST);
    }

    #[test]
    fn end_of_the_driver_writes_all_records() {
        let folder = Folder::new();
        let mut writer = Writer::start(folder.path()).unwrap();
        let mut logs = [log(writer.next_id(), true), log(writer.next_id(), true)];
        for log in &mut logs {
            add_event(log);
            writer.append(log).unwrap();
        }
        add_event(&mut logs[1]);
        writer.append(&mut logs[1]).unwrap();
        writer.close(&logs[1]);
        drop(writer);
        assert_eq!(folder.names(), ["7-1234-client-2.sqlog", "7-1234-client.sqlog"]);
        assert_eq!(folder.records("7-1234-client.sqlog").len(), 3);
        let last = folder.records("7-1234-client-2.sqlog");
        assert_eq!(last.len(), 4);
        assert_eq!(last[3]["data"]["reason"], ConnectionError::Closed.to_string());
    }

    /// A server has more connections than descriptors.
    #[test]
    fn number_of_open_files_is_limited() {
        let folder = Folder::new();
        let mut writer = Writer::start(folder.path()).unwrap();
        let mut next = || log(writer.next_id(), true);
        let mut logs: Vec<_> = (0..MAX_FILES).map(|_| next()).collect();
        let (mut refused, mut later) = (next(), next());
        for log in &mut logs {
            writer.append(log).unwrap();
        }
        assert_eq!(writer.append(&mut refused), Err(Refused::TooMany));
        add_event(&mut logs[0]);
        writer.append(&mut logs[0]).unwrap();
        writer.close(&logs[0]);
        writer.append(&mut later).unwrap();
        drop(writer);
        // On a busy machine the thread may have more to write after the wait for its end.
        let began = Instant::now();
        while folder.names().len() <= MAX_FILES && began.elapsed() < DEADLINE {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(folder.names().len(), MAX_FILES + 1);
    }

    #[test]
    fn folder_that_is_missing_is_an_error_with_its_name() {
        let folder = Folder::new();
        let missing = folder.path().join("missing");
        let error = Writer::start(&missing).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let text = error.to_string();
        assert!(
            text.contains(&missing.display().to_string()) && text.contains("create it"),
            "{text}"
        );
        assert_eq!(folder.names(), [""; 0]);
    }

    /// `/dev/full` fails each write with ENOSPC.
    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_ends_the_logs() {
        let full = |_: &str| OpenOptions::new().write(true).open("/dev/full");
        let mut writer = Writer::spawn(PathBuf::from("/dev"), full).unwrap();
        let mut log = log(writer.next_id(), true);
        append_until_ended(&writer, &mut log);
        assert_eq!(writer.shared.lock().bytes.len(), 0);
    }

    #[test]
    fn file_that_cannot_be_created_ends_the_logs() {
        let create = |_: &str| -> io::Result<File> { Err(ErrorKind::PermissionDenied.into()) };
        let mut writer = Writer::spawn(PathBuf::new(), create).unwrap();
        let mut log = log(writer.next_id(), true);
        append_until_ended(&writer, &mut log);
    }

    /// Sends each byte string that is written, and blocks until the last one is taken.
    struct SlowDisk(Sender<Vec<u8>>, Arc<Mutex<()>>);

    impl Write for SlowDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _blocked = self.1.lock();
            self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn slow_disk_drops_events_and_the_log_counts_them() {
        let (sender, written) = mpsc::channel();
        let disk = Arc::new(Mutex::new(()));
        let blocked = disk.lock().unwrap();
        let slow = disk.clone();
        let create = move |_: &str| Ok(SlowDisk(sender.clone(), slow.clone()));
        let mut writer = Writer::spawn(PathBuf::new(), create).unwrap();
        let mut log = log(writer.next_id(), true);
        let (mut offered, mut refused) = (1, 0);
        // More than the queue and the thread hold.
        while offered * 80 < 4 * MAX_QUEUED {
            add_event(&mut log);
            offered += 1;
            match writer.append(&mut log) {
                Ok(()) => {}
                Err(Refused::Full) => {
                    refused += 1;
                    log.drop_records();
                }
                Err(refused) => panic!("{refused:?}"),
            }
            assert!(writer.shared.lock().len() <= MAX_QUEUED);
        }
        assert!(refused > 0);
        drop(blocked);
        // The thread makes space.
        while writer.append(&mut log).is_err() {
            thread::yield_now();
        }
        drop(writer);
        let text = written.iter().flatten().collect::<Vec<u8>>();
        let records: Vec<_> = text.split(|byte| *byte == RECORD_SEPARATOR).skip(1).collect();
        let warning = "events were dropped";
        // Each warning has the number so far.
        let is_warning = |record: &&&[u8]| String::from_utf8_lossy(record).contains(warning);
        let dropped = records.iter().rfind(is_warning).map(|record| {
            let record: serde_json::Value = serde_json::from_slice(record).unwrap();
            let message = record["data"]["message"].as_str().unwrap().to_owned();
            message.split(' ').next().unwrap().parse::<usize>().unwrap()
        });
        let is_event = |record: &&&[u8]| {
            let text = String::from_utf8_lossy(record);
            !text.contains(warning) && !text.contains("qlog_version")
        };
        let events = records.iter().filter(is_event).count();
        assert_eq!(dropped, Some(refused));
        assert_eq!(events + refused, offered);
    }
}
