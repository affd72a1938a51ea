//! Datagrams of the KCP transports' size, sent as fast as the socket takes them, without acknowledgement
//! or order. Datagrams that arrive count, the others are in `drops`.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use quinn_udp::{BATCH_SIZE, RecvMeta, Transmit, UdpSocketState};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::args::{Load, MTU, Workload};
use crate::peers::wildcard;
use crate::protocol::Outcome;
use crate::workload::{Meter, Seen};

/// The size that kcpx asks for.
const SOCKET_BUFFER: usize = 4 << 20;
/// Requests how much has arrived. Shorter than any other datagram.
const REQUEST: &[u8; 4] = b"sum?";
/// Until the request is sent again: it may be lost as any datagram.
const RETRY: Duration = Duration::from_millis(1);
const RETRIES: usize = 10_000;
/// Largest payload of a datagram, and so of a batch that the kernel cuts into datagrams.
const BATCH: usize = 65_507;
const NO_GSO: &str = "this kernel has no UDP GSO";

pub(crate) async fn bind(addr: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr).await?;
    let options = SockRef::from(&socket);
    // The kernel gives what it may.
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER);
    Ok(socket)
}

/// Reads one datagram per system call.
pub(crate) async fn receive(socket: &UdpSocket, seen: &Seen) -> anyhow::Result<()> {
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let (len, from) = socket.recv_from(&mut buffer).await?;
        count(socket, seen, &buffer[..len], from);
    }
}

/// Reads datagrams as the kernel has put them together (GRO), several of those per system call.
pub(crate) async fn receive_coalesced(socket: &UdpSocket, seen: &Seen) -> anyhow::Result<()> {
    let state = UdpSocketState::new(socket.into())?;
    let mut buffers = vec![vec![0; usize::from(u16::MAX)]; BATCH_SIZE];
    let mut metas = [RecvMeta::default(); BATCH_SIZE];
    loop {
        let mut slices: Vec<_> = buffers.iter_mut().map(|it| IoSliceMut::new(it)).collect();
        socket.readable().await?;
        let received = socket
            .try_io(Interest::READABLE, || state.recv(socket.into(), &mut slices, &mut metas));
        let messages = match received {
            Ok(messages) => messages,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error.into()),
        };
        for (meta, buffer) in metas.iter().zip(&buffers).take(messages) {
            for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                count(socket, seen, datagram, meta.addr);
            }
        }
    }
}

/// Counts a datagram, or answers how much was counted.
fn count(socket: &UdpSocket, seen: &Seen, datagram: &[u8], from: SocketAddr) {
    if datagram == REQUEST {
        // If this is lost too, the client asks again.
        let _ = socket.try_send_to(&seen.read().to_le_bytes(), from);
    } else {
        seen.add(datagram.len());
    }
}

/// Sends until the time is over or `--limit` has arrived at most.
pub(crate) async fn run(server: SocketAddr, load: Load, batches: bool) -> anyhow::Result<Outcome> {
    let socket = bind(wildcard(server)).await?;
    socket.connect(server).await?;
    let sender = Sender::new(&socket, server, batches)?;
    let (time, limit) = (load.time(Workload::Sink), load.bytes());
    let meter = Meter::start()?;
    let mut sent = 0;
    while sent < limit && meter.wall() < time {
        sent += sender.send().await?;
    }
    // The datagrams that were sent before the request have been read when it is.
    let bytes = arrived(&socket).await?;
    let wall_s = meter.wall().as_secs_f64();
    ensure!((1..=sent).contains(&bytes), "{bytes} bytes arrived of {sent}");
    Ok(Outcome { bytes, wall_s, cpu_s: meter.cpu_s()?, ..Outcome::default() })
}

async fn arrived(socket: &UdpSocket) -> anyhow::Result<u64> {
    let mut answer = [0; 8];
    for _ in 0..RETRIES {
        socket.send(REQUEST).await?;
        if let Ok(received) = timeout(RETRY, socket.recv(&mut answer)).await {
            ensure!(received? == answer.len(), "the server's answer has the wrong length");
            return Ok(u64::from_le_bytes(answer));
        }
    }
    anyhow::bail!("the server did not answer")
}

struct Sender<'a> {
    socket: &'a UdpSocket,
    server: SocketAddr,
    /// For batches that the kernel cuts into datagrams (GSO); without it each has a call of its own.
    state: Option<UdpSocketState>,
    data: Vec<u8>,
}

impl<'a> Sender<'a> {
    fn new(socket: &'a UdpSocket, server: SocketAddr, batches: bool) -> anyhow::Result<Self> {
        let size = usize::from(MTU);
        let mut sender = Self { socket, server, state: None, data: vec![0x5a; size] };
        if batches {
            let state = UdpSocketState::new(socket.into())?;
            let segments = state.max_gso_segments().min(BATCH / size);
            ensure!(segments > 1, NO_GSO);
            sender.data = vec![0x5a; segments * size];
            sender.state = Some(state);
        }
        Ok(sender)
    }

    /// Sends one datagram or one batch, and returns its bytes.
    async fn send(&self) -> anyhow::Result<u64> {
        let Some(state) = &self.state else {
            return Ok(self.socket.send(&self.data).await.context("send")? as u64);
        };
        let transmit = Transmit {
            destination: self.server,
            ecn: None,
            contents: &self.data,
            segment_size: Some(usize::from(MTU)),
            src_ip: None,
        };
        loop {
            self.socket.writable().await?;
            let sent = self
                .socket
                .try_io(Interest::WRITABLE, || state.try_send(self.socket.into(), &transmit));
            match sent {
                Ok(()) => return Ok(self.data.len() as u64),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("send"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use clap::Parser as _;

    use super::*;
    use crate::args::{Args, Case, Peer, Wire};
    use crate::machine::{Server, work};

    #[tokio::test]
    async fn udp_rows_count_what_arrived_with_and_without_gso() {
        let load = Args::parse_from(["compare", "--limit", "1"]).load;
        for peer in [Peer::Udp, Peer::UdpGso] {
            let case = Case::new(Workload::Sink, Wire::Plain, peer);
            let server = Server::bind(case, "127.0.0.1:0".parse().unwrap()).await.unwrap();
            let addr = server.addr().unwrap();
            let seen = Arc::new(Seen::default());
            let serving = tokio::spawn(server.serve(seen.clone()));
            let outcome = work(case, addr, load).await;
            serving.abort();
            if let Err(error) = &outcome
                && error.to_string() == NO_GSO
            {
                kcpx_skip::skip(error);
                continue;
            }
            let outcome = outcome.unwrap();
            assert_eq!(outcome.bytes, seen.read(), "{peer:?}");
            assert_eq!(outcome.bytes % u64::from(MTU), 0, "{peer:?}: whole datagrams");
        }
    }
}
