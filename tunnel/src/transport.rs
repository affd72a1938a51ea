//! The KCP side of a tunnel: configuration, dialling, listening.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use kcpx::{Config, KcpListener, KcpStream, KeepaliveInterval};

use crate::net::bind_addrs;
use crate::settings::{Common, ListenAddress, RemoteAddress};

/// Limit for a server to answer a new session. After it the name is resolved again, and another
/// port of the range is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle time after which KCP pings, unless smux's own interval is shorter. A shorter time lets an
/// idle client notice a restarted server earlier.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Bytes between smux and KCP. A longer queue before the send window would delay frames of one
/// stream behind others.
const STREAM_BUFFER: usize = 64 * 1024;
/// Limit for the last bytes of a closed session.
const LINGER: Duration = Duration::from_secs(5);

/// The KCP configuration of a tunnel. Derives the key, which takes some milliseconds.
pub(crate) fn config(common: &Common) -> io::Result<Config> {
    let timeout = common.keepalive_timeout();
    // With an AEAD cipher a client keeps its session when its address changes, the default of kcpx.
    let config = common
        .config()?
        .keepalive(KeepaliveInterval::After(PING_INTERVAL.min(common.keepalive)))
        .idle_timeout(Some(timeout))
        .dead_peer_timeout(Some(timeout))
        .connect_timeout(CONNECT_TIMEOUT)
        .send_buffer(STREAM_BUFFER)
        .linger(LINGER);
    config.validate()?;
    Ok(config)
}

/// Opens a connection to a port of the server, from its own socket, and waits until the server has
/// answered. Cancel safe.
///
/// It waits although a kcptun server would accept data with the first datagram (`early_data`). The
/// wait costs one round trip per session, and connections that arrive while the server restarts are
/// served when it is back.
pub(crate) async fn dial(
    remote: &RemoteAddress,
    port: u16,
    config: Config,
) -> io::Result<KcpStream> {
    KcpStream::connect_with((host(remote), port), config).await
}

/// A random port of the range, but not `last` if there is another one.
pub(crate) fn choose_port(ports: &RangeInclusive<u16>, last: Option<u16>) -> u16 {
    let (first, end) = (*ports.start(), *ports.end());
    match last.filter(|last| ports.contains(last) && first < end) {
        // One port less to choose from: ports from `last` on are shifted by one.
        Some(last) => {
            let port = fastrand::u16(first..end);
            if port < last { port } else { port + 1 }
        }
        None => fastrand::u16(ports.clone()),
    }
}

fn host(remote: &RemoteAddress) -> &str {
    if remote.host.is_empty() { "localhost" } else { &remote.host }
}

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use super::*;
    use crate::options::Invocation;

    fn common() -> Common {
        let args = ["kcpx-tunnel", "client", "-key", "k"];
        Invocation::new(args, Default::default()).load().unwrap().settings.tunnels[0]
            .common()
            .clone()
    }

    #[tokio::test]
    async fn name_is_bound_to_its_ipv4_address_on_udp_too() {
        let address = ListenAddress { host: "localhost".into(), ports: 0..=0 };
        let listeners = listen(&address, &config(&common()).unwrap()).await.unwrap();
        let addrs: Vec<_> =
            listeners.iter().map(|listener| listener.local_addr().unwrap().ip()).collect();
        assert_eq!(addrs, [Ipv4Addr::LOCALHOST]);
    }

    #[test]
    fn chosen_port_is_of_the_range_and_not_the_last_one() {
        let chosen = |ports: RangeInclusive<u16>, last| -> BTreeSet<u16> {
            (0..1_000).map(|_| choose_port(&ports, last)).collect()
        };
        for last in 65_532..=65_535 {
            let mut others: BTreeSet<_> = (65_532..=65_535).collect();
            assert_eq!(chosen(65_532..=65_535, None), others);
            others.remove(&last);
            assert_eq!(chosen(65_532..=65_535, Some(last)), others);
        }
        // After a reload the last port may be of another range.
        assert_eq!(chosen(10..=11, Some(12)), [10, 11].into());
        assert_eq!(chosen(7..=7, Some(7)), [7].into());
    }
}
