//! The KCP state machine alone: no I/O, no clock, no randomness.
//!
//! [`Kcp`] is one connection. Time is an argument, datagrams go in through [`Kcp::input`] and come
//! out of [`Kcp::poll_transmit`]: what quinn's users know as `quinn-proto`. [`segment`] parses and
//! writes the wire format, [`seq`] has its wrapping numbers.

pub use crate::core::connection::{Kcp, PacketType, Seed, SendMessageError, Transmitted};
pub use crate::core::segment::{self, Command, ControlType, Header, InputError, Segments};
pub use crate::core::seq::{self, Sn, Ts};
