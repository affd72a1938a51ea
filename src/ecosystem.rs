//! The traits of other crates for the types of this one, each behind a feature of its own.
//!
//! The files call the public methods of listener and stream, as an adapter outside this crate would.
//! They are here because of the orphan rule: only this crate or the other one may implement.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "tokio-util")]
mod tokio_util;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "hyper")]
pub use self::hyper::KcpConnector;
#[cfg(feature = "tonic")]
pub use self::tonic::KcpConnectInfo;
