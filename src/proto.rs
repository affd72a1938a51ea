//! The sans-I/O KCP state machine, as `quinn-proto` is for QUIC: no sockets, no clock, no randomness.
//!
//! [`Kcp`] is one connection. Time is an argument; datagrams go in through [`Kcp::input`] and come out of
//! [`Kcp::poll_transmit`], deadlines out of [`Kcp::poll_timeout`]. [`segment`] has the wire format,
//! [`seq`] the wrapping sequence numbers and timestamps.
//!
//! No call blocks on another connection, with two exceptions: a process-wide pool of 64 KiB delivery
//! buffers has a `Mutex`, held for a push or a pop, and connections that [share a path](Kcp::share_path)
//! have a model behind a `Mutex`, held for one event.

pub use crate::core::connection::{
    Kcp, PacketType, Seed, SendMessageError, SharedPath, Transmitted,
};
pub use crate::core::path::amplification::SendBudget;
pub use crate::core::path::validation::{PathChallenge, PathValidation};
pub use crate::core::segment::{self, Command, ControlType, Header, InputError, Segments};
pub use crate::core::seq::{self, Sn, Ts};
