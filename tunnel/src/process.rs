//! The process around the tunnels: signals, log, counters, systemd.
//!
//! A tunnel is a [`Client`](crate::client::Client) or a [`Server`](crate::server::Server). Its
//! [`Control`] tells it to end and passes changed settings; the tunnel registers its counters in
//! [`Control::counters`]. Log lines are `tracing` events: `info!` for events that kcptun logs,
//! `warn!` for problems that a user has to act on. [`run`](crate::run()) is the whole process.

mod control;
mod counters;
mod log;
mod metrics;
pub mod snmp;
mod system;

pub use self::control::{Control, Controller};
pub use self::counters::{Counters, Metric, MetricKind, Report, Snapshot};
pub use self::log::Log;
pub use self::metrics::MetricsServer;
pub(crate) use self::system::descriptor_limit;
pub use self::system::{Notifier, Signal, Signals, raise_descriptor_limit};
