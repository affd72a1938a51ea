//! The process around the tunnels: signals, log, counters, systemd.
//!
//! A tunnel is a [`Client`](crate::client::Client) or a [`Server`](crate::server::Server). Its
//! [`Control`] says when to end and hands over changed settings; what the tunnel counts it registers
//! in [`Control::counters`]. Lines of the log are events of `tracing`: `info!` for what kcptun would
//! log, `warn!` for what a user has to act on. [`run()`] is the whole process.

mod control;
mod counters;
mod descriptors;
mod go_time;
mod log;
mod metrics;
mod notify;
mod run;
mod signals;
pub mod snmp;
#[cfg(test)]
mod tests;

pub use self::control::{Control, Controller};
pub use self::counters::{Counters, Metric, MetricKind, Report};
pub(crate) use self::descriptors::descriptor_limit;
pub use self::descriptors::raise_descriptor_limit;
pub use self::log::Log;
pub use self::metrics::MetricsServer;
pub use self::notify::Notifier;
pub use self::run::run;
pub use self::signals::{Signal, Signals};
