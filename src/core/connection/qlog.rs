//! The state of a connection for its qlog.

use std::net::SocketAddr;
use std::time::Instant;

use crate::core::connection::Kcp;
use crate::core::path::set::PathId;
use crate::core::qlog::log::{Log, Metrics, State, Title};
use crate::core::segment::HEADER_LEN;

impl Kcp {
    /// Starts the log.
    pub(crate) fn start_qlog(&mut self, id: u64, title: &Title) {
        self.qlog.log = Some(Box::new(Log::new(id, title)));
    }

    /// Ends the log.
    pub(crate) fn take_qlog(&mut self) -> Option<Box<Log>> {
        self.qlog.log.take()
    }

    /// The path that the log names: data leaves on it, or on all paths if it is the first one.
    pub(crate) fn qlog_path(&self) -> PathId {
        if self.aggregates_paths() { PathId::FIRST } else { self.active_path() }
    }

    /// The log, with the present state; `peer`: address of the peer on [`Kcp::qlog_path`]. `None` without a log.
    pub(crate) fn qlog(&mut self, now: Instant, peer: SocketAddr) -> Option<&mut Log> {
        self.qlog.log.as_ref()?;
        let (now, state) = (self.clock.at(now), self.qlog_state(peer));
        let log = self.qlog.log.as_deref_mut()?;
        log.on_state(now, state);
        Some(log)
    }

    fn qlog_state(&self, peer: SocketAddr) -> State {
        let (estimates, path) = (self.estimates(), &self.send.path);
        let model = path.congestion.model();
        let segment = (HEADER_LEN + self.send.mss()) as u64;
        let in_flight = u64::from(estimates.in_flight_segments);
        let window = u64::from(estimates.cwnd_segments) * segment;
        let metrics: Metrics = [
            estimates.min_rtt,
            estimates.srtt,
            estimates.rttvar,
            path.pto_backoff.doublings().into(),
            window,
            model.in_flight.unwrap_or(in_flight * segment),
            in_flight,
            estimates.pacing_rate,
            estimates.delivery_rate,
            model.in_flight_hi,
            model.bandwidth_lo,
            model.bdp,
            model.loss,
            estimates.rto,
            estimates.peer_window_segments.into(),
            estimates.unsent_bytes,
        ];
        let (is_established, mtu) = (self.is_established(), self.current_mtu());
        State { is_established, phase: model.phase, mtu, path: self.qlog_path(), peer, metrics }
    }
}
