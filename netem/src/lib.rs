//! A bad link between two network namespaces, or between two UDP sockets.
//!
//! A [`Link`] decides what happens to the packets of one direction; [`LossyLink`] is a simple one. Two links
//! carry packets in a `Path` or a [`Relay`].
//!
//! A `Path` has two network namespaces at its ends, with one cable or several between them, and needs Linux.
//! All of IPv4 crosses it packet by packet, the kernel's TCP included: the devices at the ends have no
//! segmentation offload, so the kernel cuts what a program writes before it gets there. A [`Relay`] carries
//! datagrams on loopback, anywhere.

#![warn(missing_debug_implementations, missing_docs, unnameable_types, unreachable_pub)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[cfg(target_os = "linux")]
mod end;
mod in_flight;
mod link;
mod lossy;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod path;
#[cfg(target_os = "linux")]
mod privilege;
#[cfg(target_os = "linux")]
mod pump;
mod relay;
#[cfg(target_os = "linux")]
mod tun;

#[cfg(target_os = "linux")]
pub use end::{End, KernelCounts};
pub use in_flight::InFlight;
pub use link::Link;
pub use lossy::{Conditions, Counts, LossyLink};
#[cfg(target_os = "linux")]
pub use path::Path;
#[cfg(target_os = "linux")]
pub use privilege::{allow, die_with_parent};
pub use relay::Relay;
