//! Whole endpoints under the simulator.

mod lifecycle;
mod limits;
mod lossy;
mod net;
mod pair;
mod silence;
mod task;
mod world;
