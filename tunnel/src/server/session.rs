//! One session of a client: detection, and a task for each of its streams.

use std::net::SocketAddr;
use std::sync::Arc;

use kcpx::KcpStream;
use kcpx_smux::{Error, Session, Stream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::Tunnel;
use crate::carrier::{Link, LinkedStream};
use crate::connection::{Policy, carry};
use crate::detect::detect;
use crate::drain::drain;
use crate::net::Target;
use crate::session::{close, failure, smux_config};
use crate::settings::ServerSettings;
use crate::stats::TunnelStats;

/// An accepted session.
#[derive(Clone)]
pub(super) struct Incoming {
    pub(super) tunnel: Arc<Tunnel>,
    pub(super) settings: Arc<ServerSettings>,
    pub(super) target: Arc<Target>,
    /// Number of the session and address of the client.
    pub(super) name: String,
    pub(super) peer: SocketAddr,
}

impl Incoming {
    /// Serves the session until it has ended.
    pub(super) async fn serve(self, stream: KcpStream) {
        let (settings, name, stats) = (&self.settings, &self.name, &self.tunnel.stats);
        TunnelStats::count(&stats.sessions);
        let _current = TunnelStats::gauge(&stats.current_sessions);
        let stream = LinkedStream::new(stream);
        let link = stream.link().clone();
        let registration = stats.register(Some(&link), None);
        let limit = settings.common.keepalive_timeout();
        let (compression, version) = (settings.compression, settings.smux_version);
        let (carrier, detected) = match detect(stream, compression, version, limit).await {
            Ok(detected) => detected,
            Err(rejected) => {
                TunnelStats::count(&stats.rejected_sessions);
                warn!("{name} rejected: {rejected}");
                return;
            }
        };
        // One more than the client's connections, so that the excess is logged.
        let max_streams = self.tunnel.clients.max_connections() + 1;
        let config = smux_config(&settings.common, detected.version, link.peer_is_kcpx())
            .max_streams(max_streams);
        let smux = match Session::server(carrier, config) {
            Ok(smux) => smux,
            Err(error) => {
                warn!("{name} rejected: {error}");
                return;
            }
        };
        registration.add_session(&smux);
        let compression = if detected.compression { "Snappy" } else { "no compression" };
        info!("{name} opened: smux version {}, {compression}", detected.version.number());
        let ended = self.serve_streams(&smux, &link).await;
        match ended.as_ref().and_then(failure) {
            None => info!("{name} closed"),
            Some(reason) => {
                TunnelStats::count(&stats.failed_sessions);
                warn!("{name} ended: {reason}");
            }
        }
    }

    /// Carries streams until the session has failed, and returns the reason, or until the tunnel has
    /// ended.
    async fn serve_streams(&self, smux: &Session, link: &Arc<Link>) -> Option<Error> {
        let control = &self.tunnel.control;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = smux.accept_stream() => match accepted {
                    Ok(stream) => {
                        let (session, link) = (self.clone(), link.clone());
                        connections.spawn(async move { session.serve_stream(stream, &link).await });
                    }
                    Err(error) => {
                        // Each has a minute to deliver received bytes, see `relay`.
                        while connections.join_next().await.is_some() {}
                        return Some(error);
                    }
                },
                Some(_) = connections.join_next() => {}
                () = control.shutdown() => break,
            }
        }
        let end = Instant::now() + control.drain();
        while !connections.is_empty() {
            tokio::select! {
                // Dropping a stream at once refuses it.
                accepted = smux.accept_stream() => match accepted {
                    Ok(refused) => drop(refused),
                    Err(error) => {
                        drain(&mut connections, end - Instant::now()).await;
                        return Some(error);
                    }
                },
                _ = connections.join_next() => {}
                () = sleep_until(end) => break,
            }
        }
        close(smux, link).await;
        connections.shutdown().await;
        None
    }

    async fn serve_stream(&self, stream: Stream, link: &Link) {
        let name = format!("stream {} of {}", stream.id(), self.name);
        let place = self.tunnel.place(&self.settings, &name, self.peer);
        let target = match &place {
            Some(_) => self.tunnel.connect_target(&self.target, &self.settings, &name).await,
            None => None,
        };
        let Some(mut target) = target else {
            // Dropping the stream ends it in order without bytes: the wire has no other refusal.
            // Nothing waits until it is sent, which a client that reads nothing could delay.
            return;
        };
        let policy = Policy::new(&self.settings.common, link.peer_is_kcpx());
        let name = format!("{name} to {}", self.target.address);
        let (reader, writer) = stream.into_split();
        let stats = &self.tunnel.stats;
        carry(name, &mut target, reader, writer, Some(link), policy, stats).await;
    }
}
