//! Metrics of a tunnel: names, help texts, and their counters.
//!
//! `docs/metrics.md` has the same rows; a test compares them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::TunnelStats;
use super::transport::{SmuxTotals, Totals};
use crate::process::Metric;
use crate::process::MetricKind::{self, Counter, Gauge};

/// Name, help, kind, and the counter among the statistics.
pub(super) type Row<S> = (&'static str, &'static str, MetricKind, fn(&S) -> u64);

pub(super) fn of<S>(rows: &[Row<S>], stats: &S) -> Vec<Metric> {
    let read =
        |&(name, help, kind, value): &Row<S>| Metric { name, help, kind, value: value(stats) };
    rows.iter().map(read).collect()
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Metrics of the tunnel itself.
#[rustfmt::skip]
pub(super) const TUNNEL: &[Row<TunnelStats>] = &[
    ("tunnel_sessions", "Sessions opened or accepted.", Counter, |s| read(&s.sessions)),
    ("tunnel_current_sessions", "Sessions now.", Gauge, |s| read(&s.current_sessions)),
    ("tunnel_failed_sessions", "Sessions that ended with an error.", Counter, |s| read(&s.failed_sessions)),
    ("tunnel_rejected_sessions", "Sessions rejected for their smux version, their compression or the limits of their client.", Counter, |s| read(&s.rejected_sessions)),
    ("tunnel_failed_dials", "Attempts to open a session that failed.", Counter, |s| read(&s.failed_dials)),
    ("tunnel_connections", "Connections carried.", Counter, |s| read(&s.connections)),
    ("tunnel_current_connections", "Connections now.", Gauge, |s| read(&s.current_connections)),
    ("tunnel_rejected_connections", "Connections without a target or a session, or above the limits of their client.", Counter, |s| read(&s.rejected_connections)),
    ("tunnel_reset_connections", "Connections that ended otherwise than by an end of both directions.", Counter, |s| read(&s.reset_connections)),
    ("tunnel_sent_bytes", "Bytes from local connections to the tunnel.", Counter, |s| read(&s.bytes_sent)),
    ("tunnel_received_bytes", "Bytes from the tunnel to local connections.", Counter, |s| read(&s.bytes_received)),
];

/// Metrics of its KCP connections and their sockets.
#[rustfmt::skip]
pub(super) const KCP: &[Row<Totals>] = &[
    ("kcp_sent_datagrams", "UDP datagrams sent.", Counter, |s| s.endpoints.sent_datagrams),
    ("kcp_received_datagrams", "UDP datagrams received.", Counter, |s| s.endpoints.received_datagrams),
    ("kcp_sent_datagram_bytes", "Bytes of the UDP datagrams sent.", Counter, |s| s.endpoints.sent_bytes),
    ("kcp_received_datagram_bytes", "Bytes of the UDP datagrams received.", Counter, |s| s.endpoints.received_bytes),
    ("kcp_sent_segments", "Data segments sent, retransmissions included.", Counter, |s| s.links.out_segs),
    ("kcp_retransmits", "Retransmissions of data segments.", Counter, |s| s.links.retrans_segs),
    ("kcp_received_segments", "Data segments received.", Counter, |s| s.links.in_segs),
    ("kcp_duplicate_segments", "Duplicate data segments received.", Counter, |s| s.links.duplicate_segs),
    ("kcp_fec_recovered_packets", "Packets recovered by FEC.", Counter, |s| s.endpoints.fec.recovered_shards),
    ("kcp_dropped_checksum", "Datagrams with a wrong checksum or tag.", Counter, |s| s.endpoints.dropped_checksum),
    ("kcp_dropped_malformed", "Datagrams without a valid segment.", Counter, |s| s.endpoints.dropped_malformed + s.endpoints.dropped_truncated),
    ("kcp_dropped_no_connection", "Datagrams of no connection.", Counter, |s| s.endpoints.dropped_no_connection),
    ("kcp_retries_sent", "Initial segments answered without state, since many peers are not validated.", Counter, |s| s.endpoints.retries_sent),
    ("kcp_migrations", "Changes of address that connections of clients survived.", Counter, |s| s.endpoints.migrations),
    ("kcp_receive_errors", "Transient errors of receiving.", Counter, |s| s.endpoints.recv_errors),
    ("kcp_send_errors", "Errors of sending, taken as loss.", Counter, |s| s.endpoints.send_errors),
    ("kcp_current_connections", "KCP connections now.", Gauge, |s| s.endpoints.current_connections),
];

/// Metrics of its smux sessions; all 0 with `mux none`.
#[rustfmt::skip]
pub(super) const SMUX: &[Row<SmuxTotals>] = &[
    ("smux_current_streams", "Streams now.", Gauge, |s| s.streams),
    ("smux_unread_bytes", "Bytes received that connections have not taken, now.", Gauge, |s| s.stats.unread as u64),
    ("smux_opened_streams", "Streams opened by this side.", Counter, |s| s.stats.streams_opened),
    ("smux_accepted_streams", "Streams opened by the peer.", Counter, |s| s.stats.streams_accepted),
    ("smux_refused_streams", "Streams of the peer that were refused.", Counter, |s| s.stats.streams_refused),
    ("smux_failed_streams", "Streams ended for a protocol error of their own.", Counter, |s| s.stats.streams_failed),
    ("smux_reset_streams", "Streams that the peer has reset.", Counter, |s| s.stats.streams_reset),
    ("smux_stalls", "Times that a session was not read, since smuxbuf was full.", Counter, |s| s.stats.stalls),
    ("smux_sent_bytes", "Bytes of frames sent, headers included, before compression.", Counter, |s| s.stats.bytes_sent),
    ("smux_received_bytes", "Bytes of frames received, headers included, without compression.", Counter, |s| s.stats.bytes_received),
    ("smux_sent_payload_bytes", "Bytes of data sent in frames.", Counter, |s| s.stats.payload_sent),
    ("smux_received_payload_bytes", "Bytes of data received in frames.", Counter, |s| s.stats.payload_received),
    ("smux_dropped_payload_bytes", "Bytes of data received for streams that are not read any more.", Counter, |s| s.stats.payload_dropped),
    ("smux_sent_syn_frames", "SYN frames sent: streams opened.", Counter, |s| s.stats.frames_sent.syn),
    ("smux_sent_fin_frames", "FIN frames sent: directions ended, and streams refused.", Counter, |s| s.stats.frames_sent.fin),
    ("smux_sent_psh_frames", "PSH frames sent: data.", Counter, |s| s.stats.frames_sent.psh),
    ("smux_sent_nop_frames", "NOP frames sent: keepalive, and resets of streams.", Counter, |s| s.stats.frames_sent.nop),
    ("smux_sent_upd_frames", "UPD frames sent: window updates of version 2.", Counter, |s| s.stats.frames_sent.upd),
    ("smux_received_syn_frames", "SYN frames received.", Counter, |s| s.stats.frames_received.syn),
    ("smux_received_fin_frames", "FIN frames received.", Counter, |s| s.stats.frames_received.fin),
    ("smux_received_psh_frames", "PSH frames received.", Counter, |s| s.stats.frames_received.psh),
    ("smux_received_nop_frames", "NOP frames received.", Counter, |s| s.stats.frames_received.nop),
    ("smux_received_upd_frames", "UPD frames received.", Counter, |s| s.stats.frames_received.upd),
    ("smux_ignored_frames", "Frames received without effect: SYN of a living stream, FIN, UPD and reset of an unknown one.", Counter, |s| s.stats.frames_ignored),
];
