//! Two network namespaces with a bad link between them.
//!
//! All of IPv4 crosses the link packet by packet, the kernel's TCP included: the devices at the ends
//! have no segmentation offload, so the kernel cuts what a program writes before it gets there.
//!
//! A [`Link`] decides what happens to the packets of one direction. [`Path`] has two of them, and
//! needs Linux.

#![warn(missing_debug_implementations, missing_docs, unnameable_types, unreachable_pub)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[cfg(target_os = "linux")]
mod end;
mod link;
#[cfg(target_os = "linux")]
mod netlink;
#[cfg(target_os = "linux")]
mod path;
#[cfg(target_os = "linux")]
mod privilege;
#[cfg(target_os = "linux")]
mod pump;
#[cfg(target_os = "linux")]
mod tun;

#[cfg(target_os = "linux")]
pub use end::{End, KernelCounts};
pub use link::Link;
#[cfg(target_os = "linux")]
pub use path::Path;
#[cfg(target_os = "linux")]
pub use privilege::{allow, die_with_parent};
