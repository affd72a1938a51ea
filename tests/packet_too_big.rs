//! Path MTUs that ICMP messages report, forged and genuine: a sender, a router and a receiver in network
//! namespaces. Linux, with iproute2; needs root, or prints SKIPPED if `unshare` is not permitted.
#![cfg(target_os = "linux")]

mod common;

#[path = "packet_too_big/hosts.rs"]
mod hosts;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use common::{assert_same, bytes, one_thread, read};
use hosts::{Hosts, Network, counted};
use kcpx::{Config, Endpoint, KcpListener, KcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

/// Limit for one exchange.
const GUARD: Duration = Duration::from_secs(60);
const PART: usize = 2_000_000;

/// The cost of [`PART`] bytes on the sender's host.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// UDP sends; a GSO batch is one.
    sends: u64,
    /// IP fragments.
    fragments: u64,
    /// Size of segments after the part.
    mtu: u32,
}

/// How the sender's socket is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    ByConnect,
    /// By the application, with `connect(2)`: the system reports ICMP messages to such a socket.
    Connected,
}

async fn stream(to: SocketAddr, made: Made) -> io::Result<KcpStream> {
    if made == Made::ByConnect {
        return KcpStream::connect_with(to, Config::new()).await;
    }
    let local = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = std::net::UdpSocket::bind(local)?;
    socket.connect(to)?;
    Endpoint::from_std(socket)?.connect(to).await
}

/// Sends a part and waits for the receiver's answer.
async fn send(stream: &mut KcpStream, part: u64) -> io::Result<Cost> {
    let (sends, fragments) = counted()?;
    stream.write_all(&bytes(part, PART)).await?;
    assert_eq!(read(stream, 1).await, b"!");
    let now = counted()?;
    let (sends, fragments) = (now.0 - sends, now.1 - fragments);
    Ok(Cost { sends, fragments, mtu: stream.stats().path.current_mtu })
}

fn guarded<T>(future: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    one_thread().block_on(async { timeout(GUARD, future).await? })
}

/// Receives and answers `parts` parts.
fn receive(addr: SocketAddr, parts: u64, ready: &Sender<()>) -> io::Result<()> {
    guarded(async {
        let listener = KcpListener::bind(addr).await?;
        ready.send(()).unwrap();
        let (mut stream, _) = listener.accept().await?;
        for part in 0..parts {
            assert_same(&read(&mut stream, PART).await, &bytes(part, PART));
            stream.write_all(b"!").await?;
        }
        // Waits until the sender has ended.
        drop(stream.read(&mut [0; 1]).await);
        Ok(())
    })
}

/// Sends parts across the network. Calls `between` with the sender's address before each part except the
/// first.
fn exchange(
    hosts: &Hosts,
    (to, made): (SocketAddr, Made),
    parts: u64,
    between: impl Fn(SocketAddr),
) -> Vec<Cost> {
    let (ready, is_ready) = channel();
    let receiving = hosts.receiver.start(move || receive(to, parts, &ready));
    is_ready.recv().expect("the receiver listens");
    let (asks, asked): (Sender<SocketAddr>, Receiver<SocketAddr>) = channel();
    let (answers, answered) = channel();
    let sending = hosts.sender.start(move || {
        guarded(async {
            let mut stream = stream(to, made).await?;
            let mut costs = vec![send(&mut stream, 0).await?];
            for part in 1..parts {
                asks.send(stream.local_addr()?).unwrap();
                answered.recv().unwrap();
                costs.push(send(&mut stream, part).await?);
            }
            stream.abort();
            // Time for the RST to leave.
            sleep(Duration::from_millis(100)).await;
            Ok(costs)
        })
    });
    while let Ok(from) = asked.recv() {
        between(from);
        answers.send(()).unwrap();
    }
    let costs = sending.recv().expect("the sender does not panic").expect("the sender");
    receiving.recv().expect("the receiver does not panic").expect("the receiver");
    costs
}

#[test]
fn forged_packet_too_big_costs_neither_fragments_nor_gso() {
    let Some(hosts) = Hosts::new(Network { own_link: 1_500, behind_router: 1_500 }) else { return };
    let cases = [(hosts::RECEIVER_V4, 552), (hosts::RECEIVER_V4, 68), (hosts::RECEIVER_V6, 1_280)];
    for (port, (ip, reported)) in (4_100..).zip(cases) {
        for (offset, made) in [(0, Made::ByConnect), (100, Made::Connected)] {
            let to = SocketAddr::new(ip.parse().unwrap(), port + offset);
            let forge = |from: SocketAddr| hosts.forge_packet_too_big(from, to, reported);
            let costs = exchange(&hosts, (to, made), 4, forge);
            println!("{to} {made:?}, {reported} reported: {costs:?}");
            let [before, .., after] = costs[..] else { panic!("four parts") };
            assert_eq!((before.fragments, after.fragments), (0, 0));
            assert!(after.sends <= 2 * before.sends, "GSO is off");
            if to.is_ipv4() {
                assert!(costs.iter().all(|cost| cost.fragments == 0 && cost.mtu == before.mtu));
            } else {
                // IPv6 routers do not fragment, so the report counts; 1,280 is the smallest MTU.
                assert!(costs[1].fragments < 1_000, "segments that were on their way");
                assert!(after.mtu >= 1_100);
            }
            hosts.forget_routes();
        }
    }
}

#[test]
fn small_mtu_is_found_on_the_own_link_and_behind_a_router() {
    for (own_link, behind_router) in [(1_280, 1_500), (1_500, 1_280)] {
        let Some(hosts) = Hosts::new(Network { own_link, behind_router }) else { return };
        for (port, ip) in (4_300..).zip([hosts::RECEIVER_V4, hosts::RECEIVER_V6]) {
            let to = SocketAddr::new(ip.parse().unwrap(), port);
            let costs = exchange(&hosts, (to, Made::ByConnect), 2, |_| {});
            println!("{to}, own link {own_link}, behind the router {behind_router}: {costs:?}");
            let [_, after] = costs[..] else { panic!("two parts") };
            assert_eq!(after.fragments, 0, "the sender cuts smaller segments");
        }
    }
}
