//! Loss detection, RTT estimation and RTO (RFC 9002, RFC 8985, RFC 6298).

pub(crate) mod acked;
pub(crate) mod loss;
pub(crate) mod rtt;
pub(crate) mod sent;
