//! A network path made for measurements: two network namespaces, and between them delay and loss
//! from a seed.
//!
//! Everything that speaks IPv4 can be at its ends, the kernel's TCP included, and crosses the same
//! path packet by packet: the devices at the ends know no segmentation offload, so what a program
//! hands to the kernel in one piece is cut before it gets there.
//!
//! [`Path`] is the whole thing, and needs Linux. [`Link`] is one direction of it under a clock of
//! the caller's, for simulations. Conditions can differ between [`Directions`] and change with time,
//! see [`Schedule`]; recorded networks give rate and delay, see [`Replay`].
//!
//! ```no_run
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! # #[cfg(target_os = "linux")]
//! # fn main() -> anyhow::Result<()> {
//! use std::net::UdpSocket;
//!
//! use kcpx_relay::{Conditions, Path};
//!
//! kcpx_relay::allow()?; // Before other threads exist; does nothing for root.
//! let path = Path::new(Conditions { loss: 5.0, ..Conditions::default() }, 1)?;
//! let address = path.server().address();
//! let bind = move || UdpSocket::bind((address, 4000));
//! // A socket stays at the end where it was made, whichever thread uses it.
//! let socket = path.server().start(bind)?.join();
//! // ... the same at `path.client()`, or `spawn` with a `std::process::Command` ...
//! println!("{:?}", path.client_to_server()?);
//! # drop(socket);
//! # Ok(())
//! # }
//! ```

#![warn(missing_debug_implementations, missing_docs, unnameable_types, unreachable_pub)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

mod link;
#[cfg(target_os = "linux")]
mod path;

pub use kcpx::testkit::trace::{DelayTrace, Trace};
#[cfg(target_os = "linux")]
pub use kcpx_netem::{End, KernelCounts, allow, die_with_parent};
pub use link::{
    Bottleneck, Burst, Conditions, Counts, DelayReplay, Directions, Link, QueueDelay, RateReplay,
    Replay, Schedule, Step,
};
#[cfg(target_os = "linux")]
pub use path::Path;
