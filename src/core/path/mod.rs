//! The network path to the peer: its MTU (RFC 8899), the anti-amplification limit (RFC 9000 8.1) and
//! path validation (RFC 9000 8.2).

pub(crate) mod amplification;
pub(crate) mod mtu;
pub(crate) mod validation;
