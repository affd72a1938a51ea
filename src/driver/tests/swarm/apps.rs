//! Processes and their applications: servers that accept, clients that connect, readers and writers.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::kinds::Kind;
use super::ledger::Ledger;
use super::plan::{Conversation, Plan, TIMEOUT, second};
use super::settings;
use crate::config::Mode;
use crate::core::path::set::PathId;
use crate::driver::tests::fixtures::SERVER;
use crate::driver::tests::sim_time::Clock;
use crate::driver::tests::sim_world::{Spawner, addr};
use crate::endpoint::Endpoint;
use crate::fuzz::endpoint::laws::Laws;
use crate::fuzz::wire::{CLIENT_SIDE, SERVER_SIDE};
use crate::listener::KcpListener;
use crate::stats::ConnectionStats;
use crate::stream::KcpStream;
use crate::stream::datagram::Datagrams;
use crate::stream::halves::{OwnedReadHalf, OwnedWriteHalf};
use crate::testkit::rng::Rng;
use crate::util::path::LocalIp;

/// Whether the tasks of a process run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Suspended,
    /// Its tasks are dropped.
    Ended,
}

/// A process of a host.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) host: u8,
    pub(super) state: Rc<Cell<State>>,
    pub(super) shared: Rc<Shared>,
}

/// State of a run, shared by all processes.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) ledger: RefCell<Ledger>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    /// Conversations that have not begun, or connect.
    pub(super) connecting: Cell<usize>,
    pub(super) laws: RefCell<Laws>,
}

impl Shared {
    /// An application of `host` has read from a stream.
    fn on_read(&self, host: u8, peer: SocketAddr, conv: u32) {
        self.laws.borrow_mut().on_read(side_of(host), peer, conv);
    }

    /// An application has changed paths or settings, or announced a change of the network.
    fn on_changed(&self, host: u8, peer: SocketAddr, conv: u32) {
        self.laws.borrow_mut().on_paths_asked(side_of(host), peer, conv);
    }
}

/// The side of a host in [`Laws`].
pub(super) fn side_of(host: u8) -> usize {
    if host == SERVER { SERVER_SIDE } else { CLIENT_SIDE }
}

impl Process {
    pub(super) fn new(host: u8, shared: &Rc<Shared>) -> Self {
        Self { host, state: Rc::new(Cell::new(State::Running)), shared: shared.clone() }
    }

    /// Runs a task of this process.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let (state, mut task) = (self.state.clone(), Some(Box::pin(task)));
        self.shared.spawner.spawn(poll_fn(move |cx| {
            let polled = match (state.get(), &mut task) {
                (State::Suspended, _) => return Poll::Pending,
                (State::Running, Some(task)) => task.as_mut().poll(cx),
                (State::Ended, _) | (_, None) => Poll::Ready(()),
            };
            if polled.is_ready() {
                task = None;
            }
            polled
        }));
    }

    fn has(&self, kind: Kind) -> bool {
        self.shared.plan.kinds.has(kind)
    }

    fn ledger(&self) -> std::cell::RefMut<'_, Ledger> {
        self.shared.ledger.borrow_mut()
    }

    /// Accepts connections until the listener ends.
    pub(super) fn serve(&self, listener: Rc<KcpListener>) {
        let process = self.clone();
        self.spawn(async move {
            let mut rng = Rng::keyed(process.shared.plan.seed, 3);
            loop {
                let accepted = process.complete(&mut rng, async || listener.accept().await).await;
                let Ok((stream, _)) = accepted else { return };
                let (now, down) = (process.shared.clock.now(), rng.spread(1, 200_000));
                process.adopt(stream, now, down);
            }
        });
    }

    /// Adds and removes the path from the second address of a client.
    fn roam(&self, stream: &Rc<KcpStream>, mut rng: Rng) {
        let (process, stream) = (self.clone(), Rc::downgrade(stream));
        let local = LocalIp::of_destination(second(self.host).ip());
        self.spawn(async move {
            for step in 0..rng.range(1, 4) {
                process.shared.clock.sleep(rng.spread(1_000, 20_000_000)).await;
                let Some(stream) = stream.upgrade() else { return };
                process.shared.on_changed(process.host, addr(SERVER), stream.conv());
                if step % 2 == 0 {
                    // The path may be there, or the connection may have ended.
                    drop(stream.add_path_from(local).await);
                } else if let Ok(paths) = stream.paths().await {
                    let active = paths.iter().filter(|path| path.is_active).count();
                    assert!(active == 1, "{paths:?}");
                    drop(stream.remove_path(rng.pick(&[PathId(0), PathId(1)])).await);
                }
            }
        });
    }

    /// Connects, and converses.
    pub(super) fn converse(&self, endpoint: Endpoint, conversation: Conversation, index: u64) {
        let process = self.clone();
        self.shared.connecting.set(self.shared.connecting.get() + 1);
        let connecting = Connecting(self.shared.clone());
        self.spawn(async move {
            let _connecting = connecting;
            let (clock, seed) = (process.shared.clock.clone(), process.shared.plan.seed);
            clock.sleep(conversation.at.saturating_sub(clock.now())).await;
            let mut rng = Rng::keyed(seed, 1_000 + index);
            let since = clock.now();
            let connect = async || endpoint.connect(addr(SERVER)).await;
            match process.complete(&mut rng, connect).await {
                Ok(stream) => process.adopt(stream, since, conversation.up),
                Err(error) => process.ledger().on_connect_error(process.host, &error, since),
            }
        });
    }

    /// Starts a reader and a writer of a stream.
    fn adopt(&self, stream: KcpStream, since: u64, len: u64) {
        let end = self.ledger().open(self.host, since);
        let key = 1 << 32 | end as u64;
        let mut rng = Rng::keyed(self.shared.plan.seed, key);
        let has_paths = self.has(Kind::TwoPaths) && self.host != SERVER;
        let (source, sink) = if !has_paths && rng.chance(500_000) {
            let (read, write) = stream.into_split();
            (Source::Half(read), Sink::Half(write))
        } else {
            let stream = Rc::new(stream);
            if has_paths {
                self.roam(&stream, rng.clone());
            }
            (Source::Stream(stream.clone()), Sink::Stream(stream))
        };
        let seed = self.shared.plan.seed;
        let [reader, writer] = [key << 1, key << 1 | 1].map(|key| Half {
            process: self.clone(),
            end,
            rng: Rng::keyed(seed, key),
        });
        self.spawn(reader.read_all(source));
        self.spawn(writer.write_all(sink, len));
    }

    /// Calls until a call completes. With cancellation some are dropped in the middle.
    async fn complete<T>(&self, rng: &mut Rng, mut call: impl AsyncFnMut() -> T) -> T {
        while self.has(Kind::Cancellation) && rng.chance(300_000) {
            let patience = rng.spread(1, 200_000);
            tokio::select! {
                biased;
                value = call() => return value,
                () = self.shared.clock.sleep(patience) => {}
            }
        }
        call().await
    }
}

/// Counts a conversation until its connection is open.
struct Connecting(Rc<Shared>);

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.connecting.set(self.0.connecting.get() - 1);
    }
}

/// A reader, by the calls of the owned half or of the stream.
enum Source {
    Half(OwnedReadHalf),
    Stream(Rc<KcpStream>),
}

impl Source {
    async fn read(&mut self, most: usize, by_chunk: bool) -> io::Result<Vec<u8>> {
        let mut buf = vec![0; most];
        let got = match self {
            Self::Half(half) if by_chunk => return half.read_chunk().await.map(Into::into),
            Self::Half(half) => half.read(&mut buf).await?,
            Self::Stream(stream) => loop {
                match stream.try_read(&mut buf) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stream.readable().await?;
                    }
                    done => break done?,
                }
            },
        };
        buf.truncate(got);
        Ok(buf)
    }

    fn stats(&self) -> ConnectionStats {
        match self {
            Self::Half(half) => half.stats(),
            Self::Stream(stream) => stream.stats(),
        }
    }

    /// The peer's address and the conversation id.
    fn key(&self) -> (SocketAddr, u32) {
        match self {
            Self::Half(half) => (half.peer_addr().unwrap(), half.conv()),
            Self::Stream(stream) => (stream.peer_addr().unwrap(), stream.conv()),
        }
    }

    fn datagrams(&self) -> Datagrams {
        match self {
            Self::Half(half) => half.datagrams(),
            Self::Stream(stream) => stream.datagrams(),
        }
    }
}

/// A writer, by the calls of the owned half or of the stream.
enum Sink {
    Half(OwnedWriteHalf),
    Stream(Rc<KcpStream>),
}

impl Sink {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Half(half) => half.write(bytes).await,
            Self::Stream(stream) => loop {
                match stream.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        stream.writable().await?;
                    }
                    done => return done,
                }
            },
        }
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        match self {
            Self::Half(half) => half.shutdown().await,
            Self::Stream(stream) => {
                poll_fn(|cx| stream.handle().send.poll_shutdown(cx.waker())).await
            }
        }
    }

    fn stats(&self) -> ConnectionStats {
        match self {
            Self::Half(half) => half.stats(),
            Self::Stream(stream) => stream.stats(),
        }
    }

    fn datagrams(&self) -> Datagrams {
        match self {
            Self::Half(half) => half.datagrams(),
            Self::Stream(stream) => stream.datagrams(),
        }
    }
}

/// The task of a reader or writer.
struct Half {
    process: Process,
    end: usize,
    rng: Rng,
}

impl Half {
    /// Pauses now and then, a slow application longer: until half of the time that the transfer may take is over.
    async fn pause(&mut self) {
        let clock = &self.process.shared.clock;
        let is_slow = self.process.has(Kind::SlowReaders)
            && clock.now() < self.process.shared.plan.healed_at + TIMEOUT;
        if is_slow && self.rng.chance(20_000) {
            clock.sleep(self.rng.spread(1_000, 2_000_000)).await;
        } else if self.rng.chance(50_000) {
            clock.sleep(self.rng.spread(1, 50_000)).await;
        }
    }

    /// Sends some datagrams beside the stream.
    fn send_datagrams(&mut self, sink: &Sink) {
        while self.process.has(Kind::Datagrams) && self.rng.chance(300_000) {
            let datagram = self.process.ledger().datagram(self.end, self.rng.size(0, 1_000));
            // It may be too large, or the connection has ended.
            if sink.datagrams().send(&datagram).is_ok() {
                self.process.ledger().on_datagram_sent(self.end);
            }
        }
    }

    fn take_datagrams(&self, source: &Source) {
        while self.process.has(Kind::Datagrams)
            && let Ok(datagram) = source.datagrams().try_recv()
        {
            self.process.ledger().on_datagram(self.end, &datagram);
        }
    }

    async fn read_all(mut self, mut source: Source) {
        let end = self.end;
        // With little memory a writer to a peer that no longer reads waits for good, as with TCP.
        let may_give_up = self.process.has(Kind::Drops) && !self.process.has(Kind::MemoryLimit);
        let gives_up = may_give_up && self.rng.chance(200_000);
        let left = if gives_up { self.rng.spread(1, 100_000) } else { u64::MAX };
        // Two writers wait for good too if neither peer reads, so clients give up in one half of all runs, and servers
        // in the other.
        let is_server = self.process.host == SERVER;
        let mut left = if is_server == (self.process.shared.plan.seed.is_multiple_of(2)) {
            left
        } else {
            u64::MAX
        };
        let most = self.rng.spread(1_000, 65_536) as usize;
        while left > 0 {
            self.pause().await;
            self.take_datagrams(&source);
            let by_chunk = self.rng.chance(500_000);
            let read = async || source.read(most, by_chunk).await;
            match self.process.complete(&mut self.rng, read).await {
                Ok(bytes) if bytes.is_empty() => {
                    self.process.ledger().on_end(end, &source.stats());
                    break;
                }
                Ok(bytes) => {
                    let (peer, conv) = source.key();
                    self.process.shared.on_read(self.process.host, peer, conv);
                    self.process.shared.laws.borrow().check_stats(&source.stats());
                    left = left.saturating_sub(bytes.len() as u64);
                    if !self.process.ledger().on_read(end, &bytes) {
                        break;
                    }
                }
                Err(error) => {
                    self.process.ledger().on_error(end, &error, "read");
                    break;
                }
            }
        }
        if left == 0 {
            self.process.ledger().on_give_up(end);
        }
        drop(source);
        self.process.ledger().on_half_done(end);
    }

    async fn write_all(mut self, mut sink: Sink, len: u64) {
        let end = self.end;
        let mut left = len + super::ledger::NAME;
        // Small messages take a segment of a small window each.
        let is_stream = self.process.shared.plan.server.kcp.mode == Mode::Stream;
        let most = self.rng.spread(if is_stream { 8 } else { 500 }, 65_536);
        while left > 0 {
            self.pause().await;
            self.send_datagrams(&sink);
            if let Sink::Stream(stream) = &sink
                && self.process.has(Kind::Settings)
                && self.rng.chance(200_000)
            {
                settings::change(stream, &mut self.rng, !self.process.shared.plan.sends_once());
                let (peer, conv) = (stream.peer_addr().unwrap(), stream.conv());
                self.process.shared.on_changed(self.process.host, peer, conv);
            }
            let bytes = self.process.ledger().content(end, left.min(most));
            let write = async || sink.write(&bytes).await;
            match self.process.complete(&mut self.rng, write).await {
                Ok(written) => {
                    self.process.ledger().on_written(end, written);
                    left -= written as u64;
                }
                Err(error) => {
                    self.process.ledger().on_error(end, &error, "write");
                    self.process.ledger().on_half_done(end);
                    return;
                }
            }
        }
        self.process.ledger().on_close(end);
        // A half that is dropped closes its side as well, and what was written is delivered.
        if matches!(sink, Sink::Stream(_)) || self.rng.chance(800_000) {
            let shutdown = async || sink.shutdown().await;
            match self.process.complete(&mut self.rng, shutdown).await {
                Ok(()) => self.process.ledger().on_shut_down(end, &sink.stats()),
                Err(error) => self.process.ledger().on_error(end, &error, "shutdown"),
            }
        }
        drop(sink);
        self.process.ledger().on_half_done(end);
    }
}
