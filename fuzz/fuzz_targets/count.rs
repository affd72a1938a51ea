//! Operations a CPU second, for the figures of fuzz/README.md.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

struct Sums {
    printed: Instant,
    inputs: u64,
    operations: u64,
}

static SUMS: Mutex<Option<Sums>> = Mutex::new(None);

/// Adds the operations of one input. Prints the sums every ten seconds, on Linux.
pub fn count(operations: usize) {
    let mut sums = SUMS.lock().expect("no panic before");
    let sums =
        sums.get_or_insert_with(|| Sums { printed: Instant::now(), inputs: 0, operations: 0 });
    sums.inputs += 1;
    sums.operations += operations as u64;
    if sums.printed.elapsed() < INTERVAL {
        return;
    }
    sums.printed = Instant::now();
    let Sums { inputs, operations, .. } = sums;
    if let Some(seconds) = cpu_seconds() {
        let (a_second, inputs_a_second) = (*operations as f64 / seconds, *inputs as f64 / seconds);
        eprintln!(
            "{operations} operations, {inputs} inputs in {seconds:.0} CPU seconds: \
             {a_second:.0} operations, {inputs_a_second:.0} inputs a second"
        );
    }
}

/// CPU time of this thread, which runs all inputs.
fn cpu_seconds() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds: u64 = text.split(' ').next()?.parse().ok()?;
    Some(nanoseconds as f64 / 1e9)
}
