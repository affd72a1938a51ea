//! The statistics of an endpoint and of its connections, for a registry of `prometheus-client`.
//!
//! Nothing is counted here: each scrape takes a snapshot of what the library has counted.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::fmt::Error;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::http::{StatusCode, header::CONTENT_TYPE};
use axum::response::IntoResponse;
use kcpx::{ConnectionStats, Endpoint, EndpointStats, KcpStream};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

/// The content type of the text format, for Prometheus.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Name, help, kind, and where the value is among the statistics.
type Row<Stats> = (&'static str, &'static str, Kind, fn(&Stats) -> u64);

/// Names begin with `kcpx_`; counters are given `_total` by the encoder.
const ENDPOINT: &[Row<EndpointStats>] = &[
    ("current_connections", "Connections now open", Kind::Gauge, |s| s.connections.current),
    ("passive_opens", "Connections opened by peers", Kind::Counter, |s| {
        s.connections.passive_opens
    }),
    ("active_opens", "Connections opened locally", Kind::Counter, |s| s.connections.active_opens),
    ("received_datagrams", "Datagrams received", Kind::Counter, |s| s.received.datagrams),
    ("received_bytes", "Bytes received, headers included", Kind::Counter, |s| s.received.bytes),
    ("sent_datagrams", "Datagrams sent", Kind::Counter, |s| s.sent.datagrams),
    ("sent_bytes", "Bytes sent, headers included", Kind::Counter, |s| s.sent.bytes),
    ("dropped_checksum", "Dropped: wrong checksum or tag", Kind::Counter, |s| s.dropped.checksum),
    ("dropped_replayed", "Dropped: taken before", Kind::Counter, |s| s.dropped.replayed),
    ("dropped_truncated", "Dropped: shorter than a segment", Kind::Counter, |s| {
        s.dropped.truncated
    }),
    ("dropped_malformed", "Dropped: no valid segment", Kind::Counter, |s| s.dropped.malformed),
    ("dropped_no_connection", "Dropped: of no connection", Kind::Counter, |s| {
        s.dropped.no_connection
    }),
    ("dropped_time_wait", "Dropped: of a connection that has ended", Kind::Counter, |s| {
        s.dropped.time_wait
    }),
    ("refused_no_listener", "Refused: the listener drains or is gone", Kind::Counter, |s| {
        s.refused.no_listener
    }),
    ("refused_max_connections", "Refused: too many", Kind::Counter, |s| s.refused.max_connections),
    ("refused_max_per_source", "Refused: too many of one source", Kind::Counter, |s| {
        s.refused.max_per_source
    }),
    ("refused_backlog", "Refused: not accepted in time", Kind::Counter, |s| s.refused.backlog),
    ("refused_max_unvalidated", "Refused: too many unvalidated", Kind::Counter, |s| {
        s.refused.max_unvalidated
    }),
    ("retry_answers_evicted", "Retries: answers dropped for others", Kind::Counter, |s| {
        s.retry.answers_evicted
    }),
    ("retries_sent", "Answered without state", Kind::Counter, |s| s.retry.sent),
    ("retries_answered", "Answers to that", Kind::Counter, |s| s.retry.answered),
    ("stateless_resets_sent", "RSTs to peers of unknown connections", Kind::Counter, |s| {
        s.stateless_resets_sent
    }),
    ("migrations", "Connections that went on from another address", Kind::Counter, |s| {
        s.connections.migrations
    }),
    ("unvalidated_connections", "Connections whose peer is not validated yet", Kind::Gauge, |s| {
        s.connections.unvalidated
    }),
    ("unvalidated_bytes", "Memory of unvalidated peers", Kind::Gauge, |s| {
        s.memory.unvalidated_bytes
    }),
    ("receive_errors", "Transient receive errors", Kind::Counter, |s| s.recv_errors.total()),
    ("send_errors", "Send errors taken as loss", Kind::Counter, |s| s.send_errors.total()),
    ("fec_recovered_shards", "Packets recovered by FEC", Kind::Counter, |s| s.fec.recovered_shards),
];

/// The same, with the labels `peer` and `conv`.
const CONNECTION: &[Row<ConnectionStats>] = &[
    ("connection_received_bytes", "Payload received", Kind::Counter, |s| s.received.payload_bytes),
    ("connection_sent_bytes", "Payload sent once", Kind::Counter, |s| s.sent.payload_bytes),
    ("connection_retransmits", "Segments sent again", Kind::Counter, |s| s.retransmits()),
    ("connection_in_flight_segments", "Segments sent, not acknowledged", Kind::Gauge, |s| {
        s.path.in_flight_segments.into()
    }),
    ("connection_unsent_bytes", "Bytes not sent yet", Kind::Gauge, |s| s.unsent_bytes),
];

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
}

/// Asked by a registry at each scrape.
#[derive(Debug)]
pub(crate) struct Exporter {
    endpoint: Endpoint,
    connections: Mutex<Vec<Weak<KcpStream>>>,
}

impl Exporter {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, connections: Mutex::default() }
    }

    /// Shows one more connection, until its last owner drops it.
    pub(crate) fn add(&self, stream: &Arc<KcpStream>) {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|stream| stream.strong_count() > 0);
        connections.push(Arc::downgrade(stream));
    }

    fn snapshots(&self) -> Vec<([(&'static str, String); 2], ConnectionStats)> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let alive = connections.iter().filter_map(Weak::upgrade);
        alive
            .filter_map(|stream| {
                let peer = stream.peer_addr().ok()?.to_string();
                Some(([("peer", peer), ("conv", stream.conv().to_string())], stream.stats()))
            })
            .collect()
    }
}

impl Collector for Exporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let stats = self.endpoint.stats();
        for (name, help, kind, value) in ENDPOINT {
            let metric = encoder.encode_descriptor(name, help, None, kind.metric_type())?;
            kind.encode(value(&stats), metric)?;
        }
        let snapshots = self.snapshots();
        for (name, help, kind, value) in CONNECTION {
            let mut family = encoder.encode_descriptor(name, help, None, kind.metric_type())?;
            for (labels, stats) in &snapshots {
                kind.encode(value(stats), family.encode_family(labels)?)?;
            }
        }
        let seconds = Some(&Unit::Seconds);
        let (name, help) = ("connection_srtt", "Smoothed round-trip time");
        let mut family = encoder.encode_descriptor(name, help, seconds, MetricType::Gauge)?;
        for (labels, stats) in &snapshots {
            ConstGauge::new(stats.path.srtt.as_secs_f64()).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

/// Answers a scrape.
pub(crate) fn render(registry: &Registry) -> impl IntoResponse + use<> {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

impl Kind {
    fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
        }
    }

    fn encode(self, value: u64, encoder: MetricEncoder<'_>) -> Result<(), Error> {
        match self {
            Self::Counter => ConstCounter::new(value).encode(encoder),
            Self::Gauge => ConstGauge::new(value).encode(encoder),
        }
    }
}
