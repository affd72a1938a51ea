//! The paths of R: recorded ones, if their files exist, and generated ones.

use std::ops::Range;
use std::path::Path as FilePath;

use anyhow::{Context as _, Result};
use kcpx::testkit::link::{Link, LinkConfig};
use kcpx::testkit::trace::{DelayTrace, Trace};

use crate::path::{FULL_PACKET, IP_OVERHEAD, Path, SECOND};
use crate::simulation::Setup;
use crate::workload::Workload;

/// Recorded pairs of NAME.down and NAME.up.
const PAIRS: [(&str, &str); 3] = [
    ("T-Mobile LTE", "TMobile-LTE-short"),
    ("AT&T LTE, driving", "ATT-LTE-driving-2016"),
    ("T-Mobile UMTS, driving", "TMobile-UMTS-driving"),
];
/// A recorded satellite link: the rate, and the delay, the same in both directions.
const SATELLITE: (&str, &str, &str) = ("Starlink", "starlink-leocc.bw", "starlink-leocc.delay");
/// Length of generated traces, seconds.
const GENERATED: u32 = 120;

/// All paths; without the recorded ones if the directory does not exist.
///
/// # Errors
///
/// When a file is missing or is no trace.
pub(crate) fn paths(directory: &FilePath) -> Result<Vec<Path>> {
    let mut paths = Vec::new();
    if directory.is_dir() {
        for (name, file) in PAIRS {
            let end = |end| read(directory, &format!("{file}.{end}"));
            let traces = [Trace::parse(&end("down")?)?, Trace::parse(&end("up")?)?];
            paths.push(Path::traced(name.to_owned(), traces, None));
        }
        let (name, rate, delay) = SATELLITE;
        let rate = Trace::parse(&read(directory, rate)?)?;
        let delay = DelayTrace::parse(&read(directory, delay)?)?;
        paths.push(Path::traced(name.to_owned(), [rate.clone(), rate], Some(&delay)));
    } else {
        eprintln!(
            "SKIPPED: the recorded paths of R and D, since {} does not exist; set their directory with --traces",
            directory.display()
        );
    }
    let pair = |model: fn(u64, u32) -> Trace| [model(1, GENERATED), model(2, GENERATED)];
    paths.push(Path::traced("model lte".to_owned(), pair(Trace::lte), None));
    paths.push(Path::traced("model drive".to_owned(), pair(Trace::drive), None));
    let satellite = Trace::satellite(1, GENERATED);
    let rates = [satellite.rate.clone(), satellite.rate];
    paths.push(Path::traced("model satellite".to_owned(), rates, Some(&satellite.delay)));
    Ok(paths)
}

/// LTE with a satellite link beside it: recorded if these paths are, and generated.
pub(crate) fn beside_satellites(paths: &[Path]) -> Vec<[Path; 2]> {
    let named = |name: &str| paths.iter().find(|path| path.name == name).cloned();
    let pairs = [PAIRS[0].0, PAIRS[1].0].map(|lte| (lte, SATELLITE.0));
    let pairs = pairs.into_iter().chain([("model lte", "model satellite")]);
    pairs.filter_map(|(lte, satellite)| Some([named(lte)?, named(satellite)?])).collect()
}

fn read(directory: &FilePath, file: &str) -> Result<String> {
    let path = directory.join(file);
    std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Upper limits on a traced path, or on several paths.
pub(crate) struct Ideal {
    /// Sorted latencies of the measured messages, us, if each leaves once and at once.
    pub(crate) latencies: Vec<u64>,
    /// Payload that full segments carry in the measured time, Mbit/s.
    pub(crate) bulk_mbit: f64,
}

/// Bytes of the KCP header.
pub(crate) const HEADER_LEN: usize = 24;

/// `None` for a path without a trace, and for several paths.
pub(crate) fn ideal(setup: &Setup<'_>) -> Option<Ideal> {
    let [path] = setup.paths else { return None };
    let config = &path.links[0];
    config.trace.as_ref()?;
    let &[(workload, start)] = &setup.flows[..] else { return None };
    // Data waiting at the sender and data waiting in the queue leave at the same time.
    let config = LinkConfig { queue_packets: usize::MAX, ..config.clone() };
    let mut link = Link::new(config, setup.seed);
    let Range { start: from, end } = setup.measured;
    let (mut latencies, mut bulk) = (Vec::new(), 0);
    match workload {
        Workload::Messages { size, every } => {
            for at in (start..setup.end).step_by(every as usize) {
                link.send(at, size + HEADER_LEN + IP_OVERHEAD, |arrival, _| {
                    if setup.measured.contains(&at) {
                        latencies.push(arrival - at);
                    }
                });
            }
            latencies.sort_unstable();
        }
        Workload::Bulk => {
            let mut latest = start;
            while latest < end {
                link.send(start, FULL_PACKET as usize, |arrival, _| latest = arrival);
                if (from..end).contains(&latest) {
                    bulk += FULL_PACKET - (HEADER_LEN + IP_OVERHEAD) as u64;
                }
            }
        }
    }
    let bulk_mbit = bulk as f64 * 8.0 / 1e6 / ((end - from) as f64 / SECOND as f64);
    Some(Ideal { latencies, bulk_mbit })
}
