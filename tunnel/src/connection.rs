//! One carried connection: its log lines, counters, and end.

use std::fmt;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncRead;
use tokio::time::Instant;
use tracing::info;

use crate::carrier::Link;
use crate::net::LocalStream;
use crate::relay::{End, Outcome, ReadChunk, Rules, WriteFrom, relay};
use crate::settings::Common;
use crate::stats::TunnelStats;

impl ReadChunk for kcpx_smux::OwnedReadHalf {
    async fn read_chunk(&mut self) -> io::Result<Bytes> {
        Self::read_chunk(self).await
    }
}

impl WriteFrom for kcpx_smux::OwnedWriteHalf {
    async fn write_from(
        &mut self,
        reader: &mut (impl AsyncRead + Unpin + Send),
    ) -> io::Result<usize> {
        Self::write_from(self, reader).await
    }

    fn abort(self) {
        Self::abort(self);
    }

    fn peer_reads_on(&self) -> Option<bool> {
        Self::peer_reads_on(self)
    }
}

/// How connections of a tunnel end, and whether they are logged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) rules: Rules,
    pub(crate) quiet: bool,
}

impl Policy {
    /// `peer_is_kcpx`: the peer is known to run this program.
    pub(crate) fn new(common: &Common, peer_is_kcpx: bool) -> Self {
        let rules = Rules {
            close_wait: common.close_wait.unwrap_or(Duration::ZERO),
            half_close_timeout: common.half_close_timeout,
            holds_fin: common.close_wait.is_none() && !peer_is_kcpx,
            peer_half_closes: common.close_wait.is_some(),
        };
        Self { rules, quiet: common.quiet }
    }
}

/// Carries a connection until it has ended, and logs it as `name`. If dropped before, it resets the
/// connection. `link` belongs to the session, if there is one.
pub(crate) async fn carry(
    name: impl fmt::Display,
    local: &mut LocalStream,
    reader: impl ReadChunk,
    writer: impl WriteFrom,
    link: Option<&Link>,
    policy: Policy,
    stats: &TunnelStats,
) -> End {
    let started = Instant::now();
    TunnelStats::count(&stats.connections);
    let _current = TunnelStats::gauge(&stats.current_connections);
    if !policy.quiet {
        info!("{name} opened");
    }
    let Outcome { sent, received, end } =
        relay(local, reader, writer, link, policy.rules, stats).await;
    if !matches!(end, End::Closed) {
        TunnelStats::count(&stats.reset_connections);
    }
    if !policy.quiet {
        let seconds = started.elapsed().as_secs_f64();
        info!("{name} {end}: {sent} bytes sent, {received} received, {seconds:.3} s");
    }
    end
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Local(error) => write!(f, "ended by the local connection ({error})"),
            Self::Tunnel(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                write!(f, "reset by the other side ({error})")
            }
            Self::Tunnel(error) => write!(f, "reset, since the tunnel failed ({error})"),
            Self::Refused(error) => {
                write!(f, "ended, since the other side takes no more ({error})")
            }
            Self::Left => f.write_str("reset, since the other side has ended it and reads no more"),
            Self::HalfCloseTimeout => f.write_str("reset after the half-close timeout"),
        }
    }
}
