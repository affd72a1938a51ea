//! The traits of other crates for the types of this one, each behind a feature of its own.
//!
//! Nothing here has state or knows the protocol: each file calls the public methods of listener and
//! stream, as an adapter outside this crate would. They are here since only this crate, or the
//! other one, may write such an `impl`.

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
