//! The sans-I/O KCP state machine, as `quinn-proto` is for QUIC: no sockets, no clock, no randomness.
//!
//! [`Kcp`] is one connection. Time is an argument; datagrams go in through [`Kcp::input`] and come out of
//! [`Kcp::poll_transmit`], deadlines out of [`Kcp::poll_timeout`]. [`segment`] has the wire format,
//! [`seq`] the wrapping sequence numbers and timestamps.
//!
//! No call blocks on another connection, with two exceptions: a process-wide pool of 64 KiB delivery
//! buffers has a `Mutex`, held for a push or a pop, and connections that [share a path](Kcp::share_path)
//! have a model behind a `Mutex`, held for one event.
//!
//! # Terms
//!
//! | KCP | TCP | QUIC | here |
//! |---|---|---|---|
//! | session, `conv` | connection, four-tuple | connection, connection ID | connection; known by peer address and conversation id (`conv`) |
//! | segment (PUSH) | segment | STREAM frame | segment |
//! | `una` | cumulative ACK | ACK range from 0 | `una` |
//! | ACK segment | selective ACK (SACK) | ACK frame | ACK segment |
//! | `snd_wnd`, `rcv_wnd`, `rmt_wnd` | send buffer, receive window | flow control credit | `Config::windows`; `PathStats::peer_window_segments` |
//! | `WASK`, `WINS` | zero-window probe, window update | DATA_BLOCKED, MAX_DATA | window probe, window update |
//! | `nodelay`, `interval`, `resend`, `nc` | retransmission timer, duplicate ACK threshold | loss detection (RFC 9002) | `Timing`, `CongestionControl` |
//! | `fastack` | fast retransmit | packet threshold | fast retransmit |
//! | none | keepalive | PING frame | ping: an empty PUSH with an old number |
//! | none | FIN, RST | STREAM FIN, CONNECTION_CLOSE | CONTROL segment: FIN, FIN-ACK, RST, RST-ACK |
//! | none | TIME-WAIT | closing and draining | TIME-WAIT, one minute |
//! | none | SYN cookies | address validation, 3x limit | address validation, 3x limit (RFC 9000 8.1) |
//! | none | none | connection migration | `Config::migration` |
//! | `SetMtu` | path MTU discovery | DPLPMTUD (RFC 8899) | `Config::mtu`, reduced if probes show a black hole |
//! | stream mode, message mode | byte stream | stream; datagram extension | `Mode::Stream`, `Mode::Message` |
//! | FEC, out-of-band packets of kcp-go | none | DATAGRAM frame (RFC 9221) | `FecConfig`, `KcpStream::datagrams` |

pub use crate::core::connection::multipath::{AddPathError, PathInfo};
pub use crate::core::connection::{
    Kcp, PacketType, Seed, SendMessageError, SharedPath, Transmitted,
};
pub use crate::core::path::amplification::SendBudget;
pub use crate::core::path::set::{PathId, PathState};
pub use crate::core::path::validation::{PathChallenge, PathValidation};
pub use crate::core::segment::{self, Command, ControlType, Header, InputError, Segments};
pub use crate::core::seq::{self, Sn, Ts};
