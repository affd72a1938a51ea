//! Counters of a session.

use std::time::Duration;

/// Frames by command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frames {
    /// SYN: streams opened.
    pub syn: u64,
    /// FIN: directions closed, and streams refused.
    pub fin: u64,
    /// PSH: data.
    pub psh: u64,
    /// NOP: keepalive, and resets of streams.
    pub nop: u64,
    /// UPD: window updates, version 2.
    pub upd: u64,
}

/// Counters of a session since its start, see [`Session::stats`](crate::Session::stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Frames sent.
    pub frames_sent: Frames,
    /// Frames received, counted when the header has arrived.
    pub frames_received: Frames,
    /// Bytes of PSH payloads sent.
    pub payload_sent: u64,
    /// Bytes of PSH payloads received, including dropped ones.
    pub payload_received: u64,
    /// Bytes written to the carrier.
    pub bytes_sent: u64,
    /// Bytes read from the carrier.
    pub bytes_received: u64,
    /// Streams opened by this side.
    pub streams_opened: u64,
    /// Streams opened by the peer and not refused.
    pub streams_accepted: u64,
    /// Streams of the peer that were refused: [`Config::max_streams`] or [`Config::accept_backlog`]
    /// was reached, or the session is being closed. They are answered with FIN, unless 65,536
    /// answers already wait for the carrier.
    ///
    /// [`Config::max_streams`]: crate::Config::max_streams
    /// [`Config::accept_backlog`]: crate::Config::accept_backlog
    pub streams_refused: u64,
    /// Streams ended by a [`ProtocolError`](crate::ProtocolError).
    pub streams_failed: u64,
    /// Streams that the peer has reset.
    pub streams_reset: u64,
    /// Frames without effect: SYN of a live stream, and FIN, UPD and reset of an unknown one.
    pub frames_ignored: u64,
    /// Bytes of payload for unknown or dropped streams, or after a FIN.
    pub payload_dropped: u64,
    /// Times that reading the carrier stopped because
    /// [`Config::max_receive_buffer`](crate::Config::max_receive_buffer) bytes were unread.
    pub stalls: u64,
    /// Bytes received that the application has not read yet.
    pub unread: usize,
    /// Time since the last header arrived, or since the session began.
    pub last_header: Duration,
}
