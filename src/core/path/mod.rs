//! The network path to the peer: its MTU (RFC 8899), address validation and the
//! anti-amplification limit (RFC 9000 8.1), and path validation (RFC 9000 8.2).

pub(crate) mod address_proof;
pub(crate) mod amplification;
mod black_hole;
pub(crate) mod mtu;
mod mtu_state;
pub(crate) mod validation;
