//! Guides: moving from TCP, settings for your traffic and your path, what to do about an error, and clients whose
//! network changes.
//!
//! These modules are in the documentation only. They show the files of the same names in `docs/`.

// The first definition of a link counts: here a page of this documentation or of docs.rs, in the document
// the file beside it. `scripts/check-paths` compares the two.

/// [Troubleshooting]: troubleshooting#a-server-that-has-restarted
///
#[doc = include_str!("../docs/drop-in.md")]
pub mod drop_in {}

/// [congestion.md]: https://docs.rs/crate/kcpx/latest/source/docs/congestion.md
/// [figures]: https://docs.rs/crate/kcpx/latest/source/docs/performance.md
/// [interop.md]: https://docs.rs/crate/kcpx/latest/source/docs/interop.md
/// [performance.md]: https://docs.rs/crate/kcpx/latest/source/docs/performance.md
///
#[doc = include_str!("../docs/tuning.md")]
pub mod tuning {}

/// [Mobility]: mobility
/// [Redundancy]: tuning#4-redundancy
/// [Shutdown, drop, abort]: drop_in#shutdown-drop-abort
/// [Towards other implementations]: drop_in#towards-other-implementations
/// [bufferbloat.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/bufferbloat.svg
/// [bursts.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/bursts.svg
/// [clean.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/clean.svg
/// [gone.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/gone.svg
/// [kcpx-trace]: https://docs.rs/kcpx-trace
/// [loss.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/loss.svg
/// [window.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/window.svg
/// [wrong-key.svg]: https://docs.rs/crate/kcpx/latest/source/docs/troubleshooting/wrong-key.svg
/// [wire.md]: https://docs.rs/crate/kcpx/latest/source/docs/wire.md
///
#[doc = include_str!("../docs/troubleshooting.md")]
pub mod troubleshooting {}

/// [lab.md]: https://docs.rs/crate/kcpx/latest/source/docs/lab.md
/// [scaling.md]: https://docs.rs/crate/kcpx/latest/source/docs/scaling.md
/// [threat-model.md]: https://docs.rs/crate/kcpx/latest/source/docs/threat-model.md
///
#[doc = include_str!("../docs/mobility.md")]
pub mod mobility {}
