//! The network path to the peer: MTU (RFC 8899), address validation and anti-amplification limit
//! (RFC 9000 8.1), path validation (RFC 9000 8.2), connections with several paths.

pub(crate) mod amplification;
pub(crate) mod mtu;
pub(crate) mod set;
pub(crate) mod validation;
