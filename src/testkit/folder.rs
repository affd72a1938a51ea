//! A folder of a test, and the qlogs in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

/// A new folder, removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("kcpx-test-{process}-{count}"));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Names of the files, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The records of the log whose name ends with `end` (RFC 7464 2.1).
    pub(crate) fn records(&self, end: &str) -> Vec<Value> {
        let name = self.names().into_iter().find(|name| name.ends_with(end)).unwrap();
        let text = fs::read_to_string(self.0.join(name)).unwrap();
        let rest = text.strip_prefix('\x1E').unwrap();
        let records = rest.split('\x1E');
        records
            .map(|text| serde_json::from_str(text.strip_suffix('\n').unwrap()).unwrap())
            .collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = fs::remove_dir_all(&self.0);
    }
}
