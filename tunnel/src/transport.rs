//! The KCP side of a tunnel: configuration, dialling, listening.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kcpx::{Config, KcpListener, KcpStream};
use tokio::net::lookup_host;

use crate::net::bind_addrs;
use crate::settings::{Common, ListenAddress, RemoteAddress};

/// Time that a server has to answer a new session. Then the name is resolved again, and another port
/// of the range is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which KCP pings, if it is not longer than smux's own interval. The less, the sooner
/// a server that has restarted is noticed by a client with nothing to send.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes between smux and KCP. More would be a queue before the send window, in which frames of a
/// stream wait for those of others.
const STREAM_BUFFER: usize = 64 * 1024;
/// Time for the last bytes of a session that was closed.
const LINGER: Duration = Duration::from_secs(5);

/// The KCP configuration of a tunnel. Derives the key, which takes some milliseconds.
pub(crate) fn config(common: &Common) -> io::Result<Config> {
    let mut config = common.config()?;
    let timeout = common.keepalive_timeout();
    config.kcp.keepalive = Some(PING_INTERVAL.min(common.keepalive));
    config.kcp.idle_timeout = Some(timeout);
    config.kcp.dead_peer_timeout = Some(timeout);
    config.connect_timeout = CONNECT_TIMEOUT;
    config.send_buffer = STREAM_BUFFER;
    config.linger = LINGER;
    config.validate()?;
    Ok(config)
}

/// Opens a connection to one of the ports of the server, from a socket of its own, and waits until
/// the server has answered. Cancel safe.
///
/// It waits, although a kcptun server would take data with the first datagram (`early_data`): it costs
/// one round trip for a session, and connections that come while the server restarts are served when
/// it is there again.
pub(crate) async fn dial(remote: &RemoteAddress, config: Config) -> io::Result<KcpStream> {
    let port = fastrand::u16(remote.ports.clone());
    KcpStream::connect_with((host(remote), port), config).await
}

/// The addresses of one of the ports of the server.
pub(crate) async fn resolve(remote: &RemoteAddress) -> io::Result<SocketAddr> {
    let port = fastrand::u16(remote.ports.clone());
    let mut addrs = lookup_host((host(remote), port)).await?;
    addrs.next().ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{:?} has no address", remote.host))
    })
}

fn host(remote: &RemoteAddress) -> &str {
    if remote.host.is_empty() { "localhost" } else { &remote.host }
}

/// Binds a listener to each port.
pub(crate) async fn listen(
    address: &ListenAddress,
    config: &Config,
) -> io::Result<Vec<KcpListener>> {
    let mut listeners = Vec::new();
    for port in address.ports.clone() {
        let bind = async {
            let addrs = bind_addrs(&address.host, port).await?;
            KcpListener::bind_with(&addrs[..], config.clone()).await
        };
        listeners.push(bind.await.map_err(|error| {
            let text = format!("cannot listen on UDP port {port} of {address}: {error}");
            io::Error::new(error.kind(), text)
        })?);
    }
    Ok(listeners)
}
