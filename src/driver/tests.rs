//! Whole endpoints under the simulator.

mod lifecycle;
mod limits;
mod lossy;
mod net;
mod pair;
mod silence;
mod stages;
mod task;
mod world;
