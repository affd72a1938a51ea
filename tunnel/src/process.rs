//! The process around the tunnels: signals, log, counters, systemd.
//!
//! A tunnel is a future, `client::run(settings, control)` or `server::run(settings, control)`. Its
//! [`Control`] says when to end and hands over changed settings; what the tunnel counts it registers
//! in [`Control::counters`]. Lines of the log are events of `tracing`: `info!` for what kcptun would
//! log, `warn!` for what a user has to act on.

mod control;
mod counters;
pub mod snmp;

pub use self::control::{Control, Controller};
pub use self::counters::{Counters, Metric, MetricKind, Report};
