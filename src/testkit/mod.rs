//! Test support for unit tests, fuzz targets and the members of the workspace: a seeded generator, a link
//! model, recorded networks, and packet scripts. Private: behind `_testkit`, not covered by semantic
//! versioning.

#![allow(missing_docs, reason = "fields and methods of test support say enough with their names")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "numbers of a simulation are small"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a panic is how a test fails, and virtual time counts from one real instant"
)]

#[cfg(all(test, feature = "qlog"))]
pub(crate) mod folder;
pub mod link;
pub mod rng;
#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
pub(crate) mod seeds;
pub mod trace;
#[cfg(all(feature = "_testkit", not(loom)))]
pub mod transmitter;
