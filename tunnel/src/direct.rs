//! A KCP connection that carries one TCP connection, without smux.

use std::sync::Arc;

use kcpx::KcpStream;

use crate::carrier::Link;
use crate::connection::{Policy, carry};
use crate::net::LocalStream;
use crate::relay::End;
use crate::stats::{Registration, TunnelStats};

/// A KCP connection. Dropped before both directions have ended, it resets the peer's connection.
pub(crate) struct DirectConnection {
    stream: KcpStream,
    link: Arc<Link>,
    is_closed: bool,
    _registration: Registration,
}

impl DirectConnection {
    pub(crate) fn new(stream: KcpStream, stats: &Arc<TunnelStats>) -> Self {
        let link = Arc::default();
        let registration = stats.register(Some(&link), None);
        Self { stream, link, is_closed: false, _registration: registration }
    }

    pub(crate) fn conv(&self) -> u32 {
        self.stream.conv()
    }

    /// Carries `local`; its reset is one on the other side as well.
    pub(crate) async fn carry(
        &mut self,
        name: String,
        local: &mut LocalStream,
        policy: Policy,
        stats: &TunnelStats,
    ) {
        let (reader, writer) = self.stream.split();
        let end = carry(name, local, reader, writer, None, policy, stats).await;
        self.is_closed = matches!(end, End::Closed);
    }
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.link.end(self.stream.stats());
        if !self.is_closed {
            // An error says that the connection has ended already.
            drop(self.stream.set_zero_linger());
        }
    }
}
