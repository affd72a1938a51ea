//! Progress that is a bar on a terminal, and a line now and then anywhere else.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) struct Progress {
    label: &'static str,
    total: u64,
    /// `None` without a terminal.
    bar: Option<ProgressBar>,
    /// When there is something to show next, and how long after that.
    due: Instant,
    every: Duration,
}

impl Progress {
    pub(crate) fn new(label: &'static str, total: u64) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let every = Duration::from_millis(if terminal { 100 } else { 2_000 });
        let bar = terminal.then(|| draw(label, total));
        Self { label, total, bar, due: Instant::now() + every, every }
    }

    /// Shows that `done` of the total are done, unless that was shown a moment ago; `message` is
    /// only called when it is.
    pub(crate) fn show(&mut self, done: u64, message: impl FnOnce() -> String) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + self.every;
        match &self.bar {
            Some(bar) => {
                bar.set_position(done);
                bar.set_message(message());
            }
            None => {
                let percent = done * 100 / self.total.max(1);
                println!("{:<10} {percent:3} %  {}", self.label, message());
            }
        }
    }

    /// Takes the bar off the screen.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(label: &'static str, total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stdout());
    let template = "{prefix:10} [{bar:40}] {percent:>3} %  {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.with_prefix(label)
}
