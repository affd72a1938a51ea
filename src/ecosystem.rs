//! Traits of other crates for this crate's types, each behind a feature.
//!
//! The implementations use only public methods of listener and stream. They are here because of the
//! orphan rule.

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
