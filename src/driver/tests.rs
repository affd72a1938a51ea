//! Whole endpoints under the simulator.

mod busy;
mod lifecycle;
mod limits;
mod lossy;
mod many;
mod moving;
mod narrow;
mod net;
#[cfg(target_os = "linux")]
mod offload;
mod opened;
mod pair;
mod parting;
mod requests;
mod silence;
mod stages;
mod strangers;
mod task;
mod world;
