//! Prints what became of the mutants.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::equivalent::block;
use crate::run::Verdict;
use crate::sample::Mutant;

/// Counts of an area, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    killed: usize,
    timeout: usize,
    survived: usize,
    not_reached: usize,
    not_compiled: usize,
    equivalent: usize,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        *match verdict {
            Verdict::Killed(_) => &mut self.killed,
            Verdict::Timeout => &mut self.timeout,
            Verdict::Survived => &mut self.survived,
            Verdict::NotReached => &mut self.not_reached,
            Verdict::NotCompiled => &mut self.not_compiled,
            Verdict::Equivalent(_) => &mut self.equivalent,
        } += 1;
    }

    fn noticed(&self) -> usize {
        self.killed + self.timeout
    }

    /// Mutants that the tests should notice.
    fn judged(&self) -> usize {
        self.noticed() + self.survived + self.not_reached
    }

    /// Mutants that the tests notice, in a hundred.
    fn share(&self) -> f64 {
        if self.judged() == 0 {
            100.0
        } else {
            100.0 * self.noticed() as f64 / self.judged() as f64
        }
    }

    fn print(&self, name: &str) {
        println!(
            "| {name} | {} | {} | {} | {} | {} | {} | {:.0} % |",
            self.killed,
            self.timeout,
            self.survived,
            self.not_reached,
            self.equivalent,
            self.not_compiled,
            self.share()
        );
    }
}

/// Verdicts in the order in which they arrive.
pub struct Progress {
    began: Instant,
    total: usize,
    done: usize,
    counts: Counts,
}

impl Progress {
    pub fn new(total: usize) -> Self {
        Self { began: Instant::now(), total, done: 0, counts: Counts::default() }
    }

    /// Prints the verdict, and how far the run is.
    pub fn add(&mut self, mutant: &Mutant, verdict: &Verdict) {
        self.done += 1;
        self.counts.add(verdict);
        let is_terminal = std::io::stderr().is_terminal();
        if is_terminal {
            eprint!("\r\x1b[K");
        }
        print_verdict(mutant, verdict);
        let left =
            self.began.elapsed().div_f64(self.done as f64).mul_f64((self.total - self.done) as f64);
        let Counts { killed, timeout, survived, not_reached, .. } = self.counts;
        let line = format!(
            "{} of {}: {killed} killed, {timeout} too slow, {survived} survived, {not_reached} not reached; about {} left",
            self.done,
            self.total,
            minutes(left)
        );
        if is_terminal {
            eprint!("{line}");
            let _ = std::io::stderr().flush();
        } else if self.done.is_multiple_of(10) {
            eprintln!("{line}");
        }
    }
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 90 { format!("{seconds} s") } else { format!("{} min", seconds.div_ceil(60)) }
}

/// Prints a verdict in one line; a survivor as a block for `mutants/equivalent.txt`.
pub fn print_verdict(mutant: &Mutant, verdict: &Verdict) {
    let how = match verdict {
        Verdict::Killed(test) => format!("killed by {test}"),
        Verdict::Timeout => "too slow".to_owned(),
        Verdict::Equivalent(reason) => reason.clone(),
        Verdict::NotCompiled => "not compiled".to_owned(),
        Verdict::Survived => "survived".to_owned(),
        Verdict::NotReached => "not reached".to_owned(),
    };
    let Mutant { path, line, id, .. } = mutant;
    if matches!(verdict, Verdict::Survived | Verdict::NotReached) {
        println!("\n{path}:{line}: {how} (mutant {id})\n{}\n", block(mutant));
    } else {
        println!("{path}:{line}: {} => {}: {how}", mutant.before(), mutant.after());
    }
}

/// Prints the table by area. Returns the share of mutants that tests notice, in a hundred.
pub fn print(verdicts: &[(&Mutant, Verdict)]) -> f64 {
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
    let mut areas: Vec<_> = verdicts.iter().map(|(mutant, _)| mutant.area).collect();
    areas.sort_unstable();
    areas.dedup();
    println!(
        "\n| area | killed | too slow | survived | not reached | equivalent | not compiled | noticed |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut all = Counts::default();
    for area in areas {
        let mut counts = Counts::default();
        for (_, verdict) in verdicts.iter().filter(|(mutant, _)| mutant.area == area) {
            counts.add(verdict);
            all.add(verdict);
        }
        counts.print(area.name());
    }
    all.print("all");
    all.share()
}
