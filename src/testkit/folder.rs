//! A folder of a test, and the qlogs in it.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

/// A new folder, removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Names of the files, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The records of the log whose name ends with `end` (RFC 7464 2.1).
    pub(crate) fn records(&self, end: &str) -> Vec<Value> {
        let name = self.names().into_iter().find(|name| name.ends_with(end)).unwrap();
        let text = fs::read_to_string(self.path().join(name)).unwrap();
        let rest = text.strip_prefix('\x1E').unwrap();
        let records = rest.split('\x1E');
        records
            .map(|text| serde_json::from_str(text.strip_suffix('\n').unwrap()).unwrap())
            .collect()
    }
}
