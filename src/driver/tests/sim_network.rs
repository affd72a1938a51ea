//! The simulated network and its sockets.
#![cfg_attr(
    not(feature = "_testkit"),
    allow(dead_code, reason = "the swarm alone needs some of it")
)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll, Waker};

use crate::sys::{RxBatch, Socket, Transmit, UdpSocket};
use crate::testkit::link::{Damage, Link, LinkConfig};
use crate::testkit::rng::Rng;
use crate::util::path::{LocalIp, Path};
use crate::util::sync::{Arc, Mutex, lock};

/// Error codes of the operating system.
#[cfg(unix)]
pub(super) mod code {
    pub(in super::super) const TOO_LARGE: i32 = libc::EMSGSIZE;
    pub(in super::super) const UNUSABLE: i32 = libc::EBADF;
    pub(in super::super) const NO_BUFFERS: i32 = libc::ENOBUFS;
}
#[cfg(windows)]
pub(super) mod code {
    pub(in super::super) const TOO_LARGE: i32 = 10_040;
    pub(in super::super) const UNUSABLE: i32 = 10_038;
    pub(in super::super) const NO_BUFFERS: i32 = 10_055;
}

/// Receive buffer of a socket in datagrams; the excess is lost, as in a kernel.
const INBOX: usize = 4_096;

type Inbox = VecDeque<(Path, Vec<u8>)>;
type Delivery = (u64, u64, SocketAddr, SocketAddr, Vec<u8>);

/// A datagram that was handed to the network, whether delivered or lost.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The socket that sent it, without further addresses and NAT.
    pub(super) socket: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) datagram: Vec<u8>,
    /// When it left, and when it arrives unless it is lost, in microseconds.
    pub(super) at: u64,
    pub(super) arrival: Option<u64>,
}

/// A datagram that a driver received.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) socket: SocketAddr,
    pub(super) from: SocketAddr,
    pub(super) datagram: Vec<u8>,
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    Lost,
    /// It takes this number of microseconds longer.
    Late(u64),
}

/// The network between the sockets.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) now: u64,
    pub(super) seed: u64,
    pub(super) path: LinkConfig,
    pub(super) links: HashMap<(SocketAddr, SocketAddr), Link>,
    pub(super) flying: BinaryHeap<Reverse<Delivery>>,
    pub(super) inboxes: HashMap<SocketAddr, Inbox>,
    /// Further addresses of sockets that are bound to all addresses of their host, and the socket of each.
    pub(super) further: HashMap<SocketAddr, SocketAddr>,
    /// Sockets behind a NAT, and the address that others see of each.
    pub(super) outside: HashMap<SocketAddr, SocketAddr>,
    /// The sockets that share an address: the address of a peer chooses one.
    pub(super) shards: HashMap<SocketAddr, Vec<SocketAddr>>,
    /// Pairs of addresses between which everything is lost, one way.
    pub(super) cut: HashSet<(SocketAddr, SocketAddr)>,
    /// Errors of the next sends and receives of a socket.
    pub(super) send_faults: HashMap<SocketAddr, VecDeque<io::Error>>,
    pub(super) recv_faults: HashMap<SocketAddr, VecDeque<io::Error>>,
    /// The fate of the next datagrams of a socket.
    pub(super) fates: HashMap<SocketAddr, VecDeque<Fate>>,
    /// Sockets on which datagrams above a size in bytes fail with EMSGSIZE, unless they permit fragmentation.
    pub(super) limits: HashMap<SocketAddr, usize>,
    /// Sockets on which sends would block, and until when in microseconds.
    pub(super) blocked: HashMap<SocketAddr, u64>,
    /// Source addresses of datagrams from a socket to a peer, in place of the socket's own; `None`: no route
    /// leads there.
    pub(super) sources: HashMap<(SocketAddr, SocketAddr), Option<IpAddr>>,
    /// Sockets that permit IP fragmentation.
    pub(super) ip_fragmentation: HashSet<SocketAddr>,
    /// Sockets whose drivers wanted to hold their threads.
    pub(super) held: HashSet<SocketAddr>,
    /// Everything sent since the last `log` call; `None` before the first.
    pub(super) log: Option<Vec<Sent>>,
    /// Everything that drivers received since the last `received` call; `None` before the first.
    pub(super) received: Option<Vec<Received>>,
    /// The time and rank of each sleep of an application that was polled.
    pub(super) alarms: BTreeMap<(u64, u64), Waker>,
    last_alarm: u64,
    pub(super) sent: u64,
    pub(super) last_rank: u64,
    pub(super) hash: u64,
}

impl Net {
    pub(super) fn new(seed: u64, path: LinkConfig) -> Self {
        Self {
            now: 0,
            seed,
            path,
            links: HashMap::new(),
            flying: BinaryHeap::new(),
            inboxes: HashMap::new(),
            further: HashMap::new(),
            outside: HashMap::new(),
            shards: HashMap::new(),
            cut: HashSet::new(),
            send_faults: HashMap::new(),
            recv_faults: HashMap::new(),
            fates: HashMap::new(),
            limits: HashMap::new(),
            blocked: HashMap::new(),
            sources: HashMap::new(),
            ip_fragmentation: HashSet::new(),
            held: HashSet::new(),
            log: None,
            received: None,
            alarms: BTreeMap::new(),
            last_alarm: 0,
            sent: 0,
            last_rank: 0,
            hash: 0xCBF2_9CE4_8422_2325,
        }
    }

    pub(super) fn send(&mut self, from: SocketAddr, to: SocketAddr, datagram: &[u8]) {
        self.sent += 1;
        let socket = self.further.get(&from).copied().unwrap_or(from);
        let from = self.outside.get(&from).copied().unwrap_or(from);
        let at = self.now;
        if let Some(log) = &mut self.log {
            let datagram = datagram.to_vec();
            log.push(Sent { socket, from, to, datagram, at, arrival: None });
        }
        for byte in datagram.iter().take(64) {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
        if self.cut.contains(&(from, to)) {
            return;
        }
        let mut late = 0;
        match self.fates.get_mut(&socket).and_then(VecDeque::pop_front) {
            None => {}
            Some(Fate::Lost) => return,
            Some(Fate::Late(time)) => late = time,
        }
        let may_fragment = self.may_fragment(socket);
        let (path, seed, now) = (&self.path, self.seed, self.now);
        let key = u64::from(from.port()) << 16 | u64::from(to.port());
        let fresh = || Link::new(path.clone(), Rng::keyed(seed, key).next());
        let link = self.links.entry((from, to)).or_insert_with(fresh);
        let (mut rank, mut arrival) = (self.last_rank, None);
        let cut = link.config().fragments && may_fragment;
        let whole = if cut { link.config().mtu } else { usize::MAX };
        link.send(now, datagram.len().min(whole), |at, damage| {
            if damage == Damage::None {
                rank += 1;
                arrival = arrival.or(Some(at + late));
                self.flying.push(Reverse((at + late, rank, from, to, datagram.to_vec())));
            }
        });
        self.last_rank = rank;
        if let Some(sent) = self.log.as_mut().and_then(|log| log.last_mut()) {
            sent.arrival = arrival;
        }
    }

    /// The time and rank of a sleep.
    pub(super) fn new_alarm(&mut self, micros: u64) -> (u64, u64) {
        self.last_alarm += 1;
        (self.now + micros, self.last_alarm)
    }

    /// Takes the wakers of the sleeps that are over.
    pub(super) fn take_due_alarms(&mut self) -> impl Iterator<Item = Waker> + use<> {
        let later = self.alarms.split_off(&(self.now + 1, 0));
        std::mem::replace(&mut self.alarms, later).into_values()
    }

    /// Whether the socket, or one of those that share its address, permits IP fragmentation.
    fn may_fragment(&self, socket: SocketAddr) -> bool {
        let shards = self.shards.get(&socket).map_or(&[][..], Vec::as_slice);
        shards.iter().chain([&socket]).any(|socket| self.ip_fragmentation.contains(socket))
    }

    /// Whether the socket is writable.
    pub(super) fn is_writable(&self, addr: SocketAddr) -> bool {
        self.blocked.get(&addr).is_none_or(|until| *until <= self.now)
    }

    /// The socket at `to` that receives from `from`.
    fn shard_of(&self, to: SocketAddr, from: SocketAddr) -> SocketAddr {
        let Some(shards) = self.shards.get(&to) else { return to };
        let IpAddr::V4(ip) = from.ip() else { return to };
        let key = u64::from(ip.to_bits()) << 16 | u64::from(from.port());
        shards[Rng::keyed(self.seed, key).below(shards.len() as u64) as usize]
    }

    pub(super) fn deliver_due(&mut self) {
        while self.flying.peek().is_some_and(|Reverse(flight)| flight.0 <= self.now) {
            let Some(Reverse((_, _, from, to, datagram))) = self.flying.pop() else { break };
            if self.cut.contains(&(from, to)) {
                continue;
            }
            let inside = self.outside.iter().find(|(_, outside)| **outside == to);
            let to = match inside {
                Some((inside, _)) => *inside,
                // The NAT has forgotten this address.
                None if self.outside.contains_key(&to) => continue,
                None => to,
            };
            let (socket, local) = match self.further.get(&to) {
                Some(socket) => (*socket, LocalIp::of_destination(to.ip())),
                None => (self.shard_of(to, from), LocalIp::ANY),
            };
            if let Some(inbox) = self.inboxes.get_mut(&socket).filter(|inbox| inbox.len() < INBOX) {
                inbox.push_back((Path { peer: from, local }, datagram));
            }
        }
    }
}

/// One end of the simulated network.
#[derive(Debug)]
pub(super) struct SimSocket {
    pub(super) addr: SocketAddr,
    /// The address itself, or the name of one of several sockets that share it.
    pub(super) inbox: SocketAddr,
    pub(super) net: Arc<Mutex<Net>>,
}

impl Socket for SimSocket {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.addr)
    }

    fn source_for(&self, peer: SocketAddr) -> Option<IpAddr> {
        let net = lock(&self.net);
        net.sources.get(&(self.addr, peer)).copied().unwrap_or_else(|| Some(self.addr.ip()))
    }

    /// The new socket has the address of the old one, and permits no fragmentation.
    fn replace(&mut self, _socket: UdpSocket) -> io::Result<()> {
        lock(&self.net).ip_fragmentation.remove(&self.inbox);
        Ok(())
    }

    fn set_ip_fragmentation(&mut self, allow: bool) {
        let ip_fragmentation = &mut lock(&self.net).ip_fragmentation;
        let changed = if allow {
            ip_fragmentation.insert(self.inbox)
        } else {
            ip_fragmentation.remove(&self.inbox)
        };
        assert!(changed, "set_ip_fragmentation is called on changes only");
    }

    fn max_gso_segments(&self) -> usize {
        44
    }

    fn recv(&mut self, batch: &mut RxBatch) -> io::Result<()> {
        let net = &mut *lock(&self.net);
        if let Some(error) = net.recv_faults.get_mut(&self.addr).and_then(VecDeque::pop_front) {
            return Err(error);
        }
        let Some(inbox) = net.inboxes.get_mut(&self.inbox) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let mut any = false;
        while let Some((path, datagram)) = inbox.front() {
            if !batch.push(*path, datagram) {
                break;
            }
            let (from, taken) = (path.peer, inbox.pop_front());
            if let (Some(received), Some((_, datagram))) = (&mut net.received, taken) {
                received.push(Received { socket: self.addr, from, datagram });
            }
            any = true;
        }
        if any { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn send(&mut self, transmit: &Transmit<'_>) -> io::Result<usize> {
        let mut net = lock(&self.net);
        if let Some(error) = net.send_faults.get_mut(&self.addr).and_then(VecDeque::pop_front) {
            return Err(error);
        }
        let is_too_large =
            net.limits.get(&self.addr).is_some_and(|limit| transmit.segment_size > *limit);
        if is_too_large && !net.ip_fragmentation.contains(&self.inbox) {
            return Err(io::Error::from_raw_os_error(code::TOO_LARGE));
        }
        if !net.is_writable(self.addr) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let path = Path { peer: transmit.dst, local: transmit.local };
        let from = path.local_addr(self.addr.port()).unwrap_or(self.addr);
        for datagram in transmit.contents.chunks(transmit.segment_size) {
            net.send(from, transmit.dst, datagram);
        }
        Ok(transmit.contents.len())
    }

    fn leave_runtime(&mut self) -> bool {
        lock(&self.net).held.insert(self.addr);
        false
    }

    fn poll_recv_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_send_ready(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}
