//! MTU probes: segments padded to the size of a datagram. Other implementations answer them
//! like short ones, and deliver nothing of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use kcpx::proto::segment::{Command, Header, Segments};
use kcpx::proto::seq::{Sn, Ts};
use kcpx_interop::implementation::Implementation;
use kcpx_interop::kcp_go::versions;
use kcpx_interop::link::Rng;
use kcpx_interop::peer::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UdpSocket;

const CONV: u32 = 0x0A0B_0C0D;
/// Number of a probe: far behind whatever is expected.
const OLD: Sn = Sn(0).back(1 << 30);
const COOKIE: Ts = Ts(0x5EED_0001);
const SIZE: usize = 1_400;
const DEADLINE: Duration = Duration::from_secs(60);

fn segment(command: Command, (sn, ts): (Sn, Ts), una: Sn, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap();
    let mut out = Vec::new();
    Header { conv: CONV, command, frg: 0, wnd: 128, ts, sn, una, len }.emit(&mut out);
    out.extend_from_slice(payload);
    out
}

fn padded(command: Command) -> Vec<u8> {
    let datagram = segment(command, (OLD, COOKIE), Sn(0), &[0; SIZE - 24]);
    assert_eq!(datagram.len(), SIZE);
    datagram
}

fn push(sn: u32, data: &[u8]) -> Vec<u8> {
    segment(Command::Push, (Sn(sn), Ts(1)), Sn(0), data)
}

/// Whether the probe was answered, and the window probe.
fn answers<'a>(datagrams: impl IntoIterator<Item = &'a Vec<u8>>) -> (bool, bool) {
    let mut seen = (false, false);
    for datagram in datagrams {
        for (header, _) in Segments::new(datagram) {
            let ack = (header.command, header.sn, header.ts);
            seen.0 |= ack == (Command::Ack, OLD, COOKIE);
            seen.1 |= header.command == Command::WindowUpdate;
        }
    }
    seen
}

/// Rule: W-46.
#[test]
fn mtu_probe_is_acked_and_discarded_by_every_state_machine() {
    for implementation in Implementation::ALL {
        let mut rng = Rng::new(1);
        let mut peer = implementation.build(CONV, &Settings::default(), &mut rng).unwrap();
        let mut now = 0;
        let mut give = |peer: &mut Box<dyn kcpx_interop::peer::Peer>, datagram: &[u8]| {
            let mut out = Vec::new();
            peer.input(now, datagram);
            for _ in 0..20 {
                now += 10;
                peer.update(now, &mut out);
            }
            answers(&out)
        };
        assert_eq!(give(&mut peer, &push(0, b"one")), (false, false), "{implementation:?}");
        assert_eq!(
            give(&mut peer, &padded(Command::WindowProbe)),
            (false, true),
            "{implementation:?}"
        );
        assert_eq!(give(&mut peer, &padded(Command::Push)), (true, false), "{implementation:?}");
        give(&mut peer, &push(1, b"two"));
        let mut got = Vec::new();
        while let Some(data) = peer.recv() {
            got.extend(data);
        }
        assert_eq!(got, b"onetwo", "{implementation:?}");
    }
}

/// Asks an echo server until it has answered both, before, between and after data.
async fn ask(server: SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(server).await.unwrap();
    let (mut seen, mut echo) = ((false, false), BTreeMap::new());
    let mut buffer = vec![0; 2_048];
    loop {
        let text: Vec<u8> = echo.values().flatten().copied().collect();
        let answered = seen == (true, true);
        if answered && text == b"hello again" {
            return;
        }
        socket.send(&push(0, b"hello")).await.unwrap();
        if !answered {
            socket.send(&padded(Command::Push)).await.unwrap();
            socket.send(&padded(Command::WindowProbe)).await.unwrap();
        } else {
            socket.send(&push(1, b" again")).await.unwrap();
        }
        // Everything may be lost, or late: then it is asked again.
        let pause = Duration::from_millis(200);
        while let Ok(len) = tokio::time::timeout(pause, socket.recv(&mut buffer)).await {
            let datagram = buffer[..len.unwrap()].to_vec();
            let new = answers([&datagram]);
            seen = (seen.0 || new.0, seen.1 || new.1);
            for (header, payload) in Segments::new(&datagram) {
                if header.command == Command::Push && header.len > 0 {
                    echo.insert(header.sn.0, payload.to_vec());
                    let una = Sn(echo.len() as u32);
                    let ack = segment(Command::Ack, (header.sn, header.ts), una, &[]);
                    socket.send(&ack).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mtu_probe_is_acked_by_tokio_kcp() {
    let config = tokio_kcp::KcpConfig {
        nodelay: tokio_kcp::KcpNoDelayConfig::fastest(),
        flush_write: true,
        stream: true,
        ..tokio_kcp::KcpConfig::default()
    };
    let mut listener = tokio_kcp::KcpListener::bind(config, "127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1_000];
        while let Ok(len @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..len]).await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    tokio::time::timeout(DEADLINE, ask(addr)).await.expect("an answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mtu_probe_is_acked_by_kcp_go() {
    for version in versions() {
        let (_program, addr) = version.serve([]).await.unwrap();
        let asked = tokio::time::timeout(DEADLINE, ask(addr)).await;
        asked.unwrap_or_else(|_| panic!("no answer of {version}"));
    }
}
