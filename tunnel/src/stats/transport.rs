//! The KCP connections, sockets and smux sessions of a tunnel: the live ones, and sums of ended
//! ones.

use std::collections::HashMap;
use std::ops::Add;
use std::sync::Arc;

use kcpx::{ConnectionStats, Endpoint, EndpointStats};
use kcpx_smux::{Frames, Session, Stats};

use super::TunnelStats;
use crate::carrier::Link;
use crate::process::snmp::Snapshot;

#[derive(Debug, Default)]
pub(super) struct Transport {
    next: u64,
    members: HashMap<u64, Member>,
    /// Members that have a link.
    links: u64,
    max_links: u64,
    /// Sums of ended members.
    ended: Totals,
}

/// A KCP connection with its socket and smux session, if present.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    link: Option<Arc<Link>>,
    endpoint: Option<Endpoint>,
    session: Option<Session>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) links: Snapshot,
    pub(super) endpoints: EndpointStats,
    pub(super) smux: SmuxTotals,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SmuxTotals {
    /// `last_header` is not summed.
    pub(super) stats: Stats,
    /// Current streams.
    pub(super) streams: u64,
}

/// A live member, until dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    stats: Arc<TunnelStats>,
    number: u64,
}

impl Registration {
    pub(super) fn new(stats: Arc<TunnelStats>, number: u64) -> Self {
        Self { stats, number }
    }

    /// Also counts the smux session of the connection. Keeps a handle of it until `self` is
    /// dropped.
    pub(crate) fn add_session(&self, session: &Session) {
        if let Some(member) = self.stats.transport().members.get_mut(&self.number) {
            member.session = Some(session.clone());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Statistics are read without the lock, and moved to the sums in one step.
        let member = self.stats.transport().members.get(&self.number).cloned();
        let Some(member) = member else { return };
        let totals = member.totals().ended();
        let removed = self.stats.transport().remove(self.number, totals);
        // The last handle of a socket or session is dropped without the lock.
        drop((member, removed));
    }
}

impl Transport {
    pub(super) fn register(&mut self, link: Option<Arc<Link>>, endpoint: Option<Endpoint>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.links += u64::from(link.is_some());
        self.max_links = self.max_links.max(self.links);
        self.members.insert(number, Member { link, endpoint, session: None });
        number
    }

    fn remove(&mut self, number: u64, totals: Totals) -> Option<Member> {
        let removed = self.members.remove(&number)?;
        self.links -= u64::from(removed.link.is_some());
        self.ended = self.ended + totals;
        Some(removed)
    }

    pub(super) fn members(&self) -> Vec<Member> {
        self.members.values().cloned().collect()
    }

    pub(super) fn ended(&self) -> Totals {
        self.ended
    }

    /// Most concurrent connections.
    pub(super) fn max_connections(&self) -> u64 {
        self.max_links
    }
}

impl Member {
    pub(super) fn totals(&self) -> Totals {
        Totals {
            links: self.link.as_ref().map(|link| of_connection(&link.stats())).unwrap_or_default(),
            endpoints: self.endpoint.as_ref().map(Endpoint::stats).unwrap_or_default(),
            smux: self.session.as_ref().map(SmuxTotals::new).unwrap_or_default(),
        }
    }
}

impl Totals {
    /// Without gauges, which no longer apply once a member has ended.
    fn ended(mut self) -> Self {
        let endpoints = &mut self.endpoints;
        (endpoints.current_connections, endpoints.unvalidated_connections) = (0, 0);
        endpoints.unvalidated_bytes = 0;
        (self.smux.streams, self.smux.stats.unread) = (0, 0);
        self
    }

    /// The counters by kcp-go's names.
    pub(super) fn snapshot(&self) -> Snapshot {
        let (mut snapshot, endpoints) = (self.links, &self.endpoints);
        snapshot.active_opens = endpoints.active_opens;
        snapshot.passive_opens = endpoints.passive_opens;
        snapshot.curr_estab = endpoints.current_connections;
        snapshot.in_errs = endpoints.recv_errors + endpoints.dropped_truncated;
        snapshot.in_csum_errors = endpoints.dropped_checksum;
        snapshot.kcp_in_errors = endpoints.dropped_malformed;
        snapshot.in_pkts = endpoints.received_datagrams;
        snapshot.out_pkts = endpoints.sent_datagrams;
        snapshot.in_bytes = endpoints.received_bytes;
        snapshot.out_bytes = endpoints.sent_bytes;
        snapshot.fec_parity_shards = endpoints.fec.parity_shards;
        snapshot.fec_errs = endpoints.fec.unrecoverable_groups;
        snapshot.fec_recovered = endpoints.fec.recovered_shards;
        snapshot.oob_packets = endpoints.out_of_band_received;
        snapshot
    }
}

impl Add for Totals {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            links: self.links + more.links,
            endpoints: self.endpoints + more.endpoints,
            smux: self.smux + more.smux,
        }
    }
}

impl SmuxTotals {
    fn new(session: &Session) -> Self {
        Self { stats: session.stats(), streams: session.num_streams() as u64 }
    }
}

impl Add for SmuxTotals {
    type Output = Self;

    fn add(mut self, more: Self) -> Self {
        let (sum, stats) = (&mut self.stats, &more.stats);
        add_frames(&mut sum.frames_sent, &stats.frames_sent);
        add_frames(&mut sum.frames_received, &stats.frames_received);
        sum.payload_sent += stats.payload_sent;
        sum.payload_received += stats.payload_received;
        sum.bytes_sent += stats.bytes_sent;
        sum.bytes_received += stats.bytes_received;
        sum.streams_opened += stats.streams_opened;
        sum.streams_accepted += stats.streams_accepted;
        sum.streams_refused += stats.streams_refused;
        sum.streams_failed += stats.streams_failed;
        sum.streams_reset += stats.streams_reset;
        sum.frames_ignored += stats.frames_ignored;
        sum.payload_dropped += stats.payload_dropped;
        sum.stalls += stats.stalls;
        sum.unread += stats.unread;
        self.streams += more.streams;
        self
    }
}

fn add_frames(sum: &mut Frames, frames: &Frames) {
    sum.syn += frames.syn;
    sum.fin += frames.fin;
    sum.psh += frames.psh;
    sum.nop += frames.nop;
    sum.upd += frames.upd;
}

/// The counters of a connection by kcp-go's names.
fn of_connection(stats: &ConnectionStats) -> Snapshot {
    Snapshot {
        bytes_sent: stats.sent_bytes,
        bytes_received: stats.received_bytes,
        in_segs: stats.received_segments + stats.duplicate_segments,
        out_segs: stats.sent_segments + stats.retransmits(),
        retrans_segs: stats.retransmits(),
        fast_retrans_segs: stats.fast_retransmits,
        early_retrans_segs: stats.early_retransmits,
        lost_segs: stats.timeout_retransmits,
        duplicate_segs: stats.duplicate_segments,
        ..Snapshot::default()
    }
}
