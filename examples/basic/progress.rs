//! Progress: a bar on a terminal, and a line now and then anywhere else.

use std::io::{IsTerminal, Write as _, stdout};
use std::time::{Duration, Instant};

/// Characters of the bar, and of the whole line: more would be wrapped.
const BAR: usize = 20;
const LINE: usize = 79;

pub(crate) struct Progress {
    label: &'static str,
    total: u64,
    terminal: bool,
    /// When there is something to show next, and how long after that.
    due: Instant,
    every: Duration,
}

impl Progress {
    pub(crate) fn new(label: &'static str, total: u64) -> Self {
        let terminal = stdout().is_terminal();
        let every = Duration::from_millis(if terminal { 100 } else { 2_000 });
        Self { label, total, terminal, due: Instant::now() + every, every }
    }

    /// Shows that `done` of the total are done, unless it has done so a moment ago; calls `message`
    /// only when it shows it.
    pub(crate) fn show(&mut self, done: u64, message: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + self.every;
        let (label, message) = (self.label, message());
        let percent = (done * 100 / self.total.max(1)).min(100);
        if !self.terminal {
            println!("{label:<10} {percent:3} %  {message}");
            return;
        }
        let bar = "=".repeat(BAR * percent as usize / 100);
        let line = format!("{label:<10} [{bar:<BAR$}] {percent:3} %  {message}");
        print!("\r{:<LINE$.LINE$}", line);
        // Only looks worse when it fails.
        let _ = stdout().flush();
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(self) {
        if self.terminal {
            print!("\r{:LINE$}\r", "");
            let _ = stdout().flush();
        }
    }
}
