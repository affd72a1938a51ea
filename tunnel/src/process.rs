//! The process around the tunnels: signals, log, counters, systemd.
//!
//! A tunnel is a [`Client`](crate::client::Client) or a [`Server`](crate::server::Server). Its
//! [`Control`] tells it to end and passes changed settings; the tunnel registers its counters in
//! [`Control::counters`]. Log lines are `tracing` events: `info!` for events that kcptun logs,
//! `warn!` for problems that a user has to act on. [`run()`] is the whole process.

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
