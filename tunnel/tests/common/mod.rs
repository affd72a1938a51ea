//! Helpers of the tests of whole tunnels: settings, targets, a lossy path.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod kcptun;
pub mod paths;
pub mod stock;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kcpx::{AckPolicy, Algorithm, CongestionControl, FecConfig, Redundancy, Timing};
use kcpx_tunnel::client::Client;
use kcpx_tunnel::process::{Control, Controller, Counters};
use kcpx_tunnel::server::{Clients, Server};
use kcpx_tunnel::settings::{
    ClientSettings, Common, ListenAddress, LocalAddress, Mux, Passphrase, RemoteAddress,
    ServerSettings, SmuxVersion,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::task::{JoinHandle, JoinSet};

/// Limit of every wait in a test.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Waits for `future` within [`LIMIT`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} took too long"))
}

/// kcptun's defaults, except a timing that does not slow tests down.
pub fn common() -> Common {
    Common {
        key: Passphrase::new("it's a secrect"),
        algorithm: Algorithm::Aes256,
        timing: Timing::FAST3,
        congestion_control: CongestionControl::Bbr,
        mtu: 1_350,
        rate_limit: None,
        send_window: 1_024,
        recv_window: 1_024,
        redundancy: Redundancy::Fec(FecConfig::new(10, 3).unwrap()),
        dscp: 0,
        ack_policy: AckPolicy::PerBatch,
        socket_buffer: 4 << 20,
        mux: Mux::Smux,
        frame_size: 8_192,
        smux_buffer: 4 << 20,
        stream_buffer: 2 << 20,
        keepalive: Duration::from_secs(10),
        close_wait: None,
        half_close_timeout: Duration::from_secs(300),
        quiet: false,
    }
}

pub fn client_settings(remote: SocketAddr, common: Common) -> ClientSettings {
    ClientSettings {
        listen: "127.0.0.1:0".parse().unwrap(),
        remote: RemoteAddress {
            host: remote.ip().to_string(),
            ports: remote.port()..=remote.port(),
        },
        sessions: 1,
        auto_expire: None,
        scavenge_ttl: Some(Duration::from_secs(600)),
        compression: true,
        smux_version: SmuxVersion::V2,
        common,
    }
}

pub fn server_settings(target: LocalAddress, common: Common) -> ServerSettings {
    ServerSettings {
        listen: ListenAddress { host: "127.0.0.1".into(), ports: 0..=0 },
        target,
        compression: None,
        smux_version: None,
        common,
    }
}

pub fn local(addr: SocketAddr) -> LocalAddress {
    LocalAddress::Tcp { host: addr.ip().to_string(), port: addr.port() }
}

/// A running client or server; ends at once on drop.
pub struct Running<S> {
    pub controller: Option<Controller<S>>,
    pub counters: Counters,
    pub task: JoinHandle<()>,
}

impl<S: Clone> Running<S> {
    /// Ends it like a signal.
    pub async fn shutdown(mut self) {
        self.controller.take().unwrap().shutdown();
        within("shutdown", &mut self.task).await.unwrap();
    }

    /// Returns a Prometheus metric.
    pub fn metric(&self, name: &str) -> u64 {
        let reports = self.counters.read();
        let metric = reports[0].metrics.iter().find(|metric| metric.name == name);
        metric.unwrap_or_else(|| panic!("no metric {name}")).value
    }

    /// Waits until a Prometheus metric is `value`.
    pub async fn metric_becomes(&self, name: &str, value: u64) {
        within(name, async {
            while self.metric(name) != value {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

impl<S> Drop for Running<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub async fn start_client(
    settings: ClientSettings,
    drain: Duration,
) -> (Running<ClientSettings>, Option<SocketAddr>) {
    let counters = Counters::default();
    let (controller, control) = Controller::new(settings, drain, counters.clone());
    let client = Client::bind(control).await.unwrap();
    let addr = client.local_addr();
    let task = tokio::spawn(client.run());
    (Running { controller: Some(controller), counters, task }, addr)
}

pub async fn try_start_server(
    settings: ServerSettings,
    drain: Duration,
) -> io::Result<(Running<ServerSettings>, SocketAddr)> {
    let counters = Counters::default();
    let (controller, control): (_, Control<_>) = Controller::new(settings, drain, counters.clone());
    let server = Server::bind(control, Clients::of_process()).await?;
    let addr = server.local_addrs()[0];
    let task = tokio::spawn(server.run());
    Ok((Running { controller: Some(controller), counters, task }, addr))
}

pub async fn start_server(
    settings: ServerSettings,
    drain: Duration,
) -> (Running<ServerSettings>, SocketAddr) {
    try_start_server(settings, drain).await.unwrap()
}

/// Starts a server on a port that another server has just left. Retries, since another program may
/// use the port briefly, and the earlier socket may not be closed yet.
pub async fn restart_server(
    settings: ServerSettings,
    drain: Duration,
) -> (Running<ServerSettings>, SocketAddr) {
    within("port", async {
        loop {
            match try_start_server(settings.clone(), drain).await {
                Ok(server) => break server,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    })
    .await
}

/// Both roles, a target, and a path that loses the fraction `loss`.
pub struct Tunnel {
    pub server: Running<ServerSettings>,
    pub client: Running<ClientSettings>,
    pub addr: SocketAddr,
    pub path: LossyPath,
}

pub async fn tunnel(
    target: SocketAddr,
    loss: f64,
    change: impl FnOnce(&mut ClientSettings, &mut ServerSettings),
) -> Tunnel {
    let mut server = server_settings(local(target), common());
    let mut client = client_settings(target, common());
    change(&mut client, &mut server);
    let (server, far) = start_server(server, Duration::from_secs(5)).await;
    let path = LossyPath::new(far, loss, seed()).await;
    client.remote.ports = path.addr.port()..=path.addr.port();
    let (client, addr) = start_client(client, Duration::from_secs(5)).await;
    Tunnel { server, client, addr: addr.unwrap(), path }
}

/// The seed of this run, which is printed.
pub fn seed() -> u64 {
    let seed = std::env::var("KCP_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed}: run again with KCP_TEST_SEED={seed}");
    seed
}

/// Sockets that servers have sent to, open until the process ends. A server sends for some seconds
/// after its path is gone. A kcptun client on the same port would take the source of such a
/// datagram for its server, and wait.
static USED: Mutex<Vec<Arc<UdpSocket>>> = Mutex::new(Vec::new());

/// Forwards datagrams between clients and one server, and drops some.
pub struct LossyPath {
    pub addr: SocketAddr,
    /// The server's address. A change looks to clients like a killed and restarted server: nothing
    /// from the old one arrives.
    pub server: Arc<Mutex<SocketAddr>>,
    pub lost: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl LossyPath {
    pub async fn new(server: SocketAddr, loss: f64, seed: u64) -> Self {
        let socket = Arc::new(bound_udp("127.0.0.1:0".parse().unwrap()));
        let addr = socket.local_addr().unwrap();
        let lost = Arc::new(AtomicU64::new(0));
        let server = Arc::new(Mutex::new(server));
        let (count, current) = (lost.clone(), server.clone());
        let task = tokio::spawn(async move {
            let mut upstreams = std::collections::HashMap::new();
            let mut backwards = JoinSet::new();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut buf = vec![0; 65_536];
            loop {
                let Ok((len, from)) = socket.recv_from(&mut buf).await else { continue };
                let upstream = upstreams.entry(from).or_insert_with(|| {
                    let upstream = Arc::new(bound_udp("127.0.0.1:0".parse().unwrap()));
                    USED.lock().unwrap().push(upstream.clone());
                    let (receiver, sender) = (upstream.clone(), socket.clone());
                    let (count, mut random) = (count.clone(), random.fork());
                    let current = current.clone();
                    backwards.spawn(async move {
                        let mut buf = vec![0; 65_536];
                        loop {
                            let Ok((len, from_server)) = receiver.recv_from(&mut buf).await else {
                                continue;
                            };
                            if from_server != *current.lock().unwrap() {
                                continue;
                            }
                            if random.f64() < loss {
                                count.fetch_add(1, Ordering::Relaxed);
                            } else {
                                drop(sender.send_to(&buf[..len], from).await);
                            }
                        }
                    });
                    upstream
                });
                if random.f64() < loss {
                    count.fetch_add(1, Ordering::Relaxed);
                } else {
                    let server = *current.lock().unwrap();
                    drop(upstream.send_to(&buf[..len], server).await);
                }
            }
        });
        Self { addr, server, lost, task }
    }
}

impl Drop for LossyPath {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A socket with buffers large enough not to drop datagrams.
pub fn bound_udp(addr: SocketAddr) -> UdpSocket {
    let socket = std::net::UdpSocket::bind(addr).unwrap();
    socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
    socket.set_nonblocking(true).unwrap();
    UdpSocket::from_std(socket).unwrap()
}

/// A TCP service. Ends on drop.
pub struct Target {
    pub addr: SocketAddr,
    pub accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for Target {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A service that calls `serve` for each connection.
pub async fn target<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> Target {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    // A thousand connections at once fit: the kernel may reset those beyond the backlog.
    let listener = socket.listen(4_096).unwrap();
    let (addr, accepted) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = accepted.clone();
    let task = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::Relaxed);
            connections.spawn(serve(stream));
            while connections.try_join_next().is_some() {}
        }
    });
    Target { addr, accepted, task }
}

/// Sends received bytes back, and ends when the peer ends.
pub async fn echo() -> Target {
    target(|mut stream| async move {
        let (mut reader, mut writer) = stream.split();
        // An error means that the connection was reset.
        if tokio::io::copy(&mut reader, &mut writer).await.is_ok() {
            drop(writer.shutdown().await);
        }
    })
    .await
}

/// Bytes that differ for each `number`, half of them compressible.
pub fn sample(number: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut bytes = vec![0; len];
    for block in bytes.chunks_mut(512) {
        if random.bool() {
            random.fill(block);
        } else {
            block.fill(random.u8(..));
        }
    }
    bytes
}

/// Sends `len` bytes of `sample(number)` and shuts down; fails unless exactly they come back.
pub async fn echoes(addr: SocketAddr, number: u64, len: usize) -> io::Result<()> {
    let bytes = sample(number, len);
    let (mut reader, mut writer) = TcpStream::connect(addr).await?.into_split();
    let expected = bytes.clone();
    let sending = async move {
        writer.write_all(&bytes).await?;
        writer.shutdown().await?;
        io::Result::Ok(writer)
    };
    let mut back = Vec::with_capacity(len);
    let (_writer, read) = tokio::try_join!(sending, reader.read_to_end(&mut back))?;
    if back == expected {
        return Ok(());
    }
    let same = back.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    Err(io::Error::other(format!("{read} of {len} bytes came back, {same} of them equal")))
}

/// Sends `len` bytes and reads them back, without an end in between.
pub async fn answers(addr: SocketAddr, number: u64, len: usize) -> io::Result<()> {
    let bytes = sample(number, len);
    let (mut reader, mut writer) = TcpStream::connect(addr).await?.into_split();
    let mut back = vec![0; len];
    tokio::try_join!(writer.write_all(&bytes), reader.read_exact(&mut back))?;
    if back == bytes { Ok(()) } else { Err(io::Error::other("other bytes came back")) }
}

/// Time until a new connection is answered. Starts one each 100 ms; each waits without limit.
pub async fn time_until_answered(addr: SocketAddr) -> Duration {
    let start = std::time::Instant::now();
    let mut attempts = JoinSet::new();
    within("recovery", async {
        let mut next = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                _ = next.tick() => drop(attempts.spawn(answers(addr, 1, 100))),
                Some(attempt) = attempts.join_next() => {
                    if attempt.unwrap().is_ok() {
                        return start.elapsed();
                    }
                }
            }
        }
    })
    .await
}
