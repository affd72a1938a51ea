//! State machines of several makes behind one trait.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{KcpConfig, Mode, Timing};

use crate::link::Rng;

/// One side of a conversation. Times are milliseconds of the virtual clock.
pub trait Peer: fmt::Debug {
    /// Offers data and gives how much was taken: part of it in stream mode, all of a message.
    /// `None` while there is no room.
    fn send(&mut self, now: u64, data: &[u8]) -> Option<usize>;

    /// The next bytes in order, or the next message.
    fn recv(&mut self) -> Option<Vec<u8>>;

    /// A datagram arrived.
    fn input(&mut self, now: u64, datagram: &[u8]);

    /// Does what is due and appends the datagrams that leave.
    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>);

    /// When [`Peer::update`] is to be called next, later than `now`.
    fn next(&self, now: u64) -> Option<u64>;

    /// Whether everything sent is acknowledged.
    fn is_drained(&self) -> bool;
}

/// The presets by kcptun's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the constants of Timing")]
pub enum Preset {
    Protocol,
    Normal,
    Fast,
    Fast2,
    Fast3,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Protocol, Self::Normal, Self::Fast, Self::Fast2, Self::Fast3];

    /// As our type.
    #[must_use]
    pub fn ours(self) -> Timing {
        match self {
            Self::Protocol => Timing::KCP_DEFAULT,
            Self::Normal => Timing::NORMAL,
            Self::Fast => Timing::FAST,
            Self::Fast2 => Timing::FAST2,
            Self::Fast3 => Timing::FAST3,
        }
    }

    /// As the four numbers: nodelay, interval, resend, nc.
    #[must_use]
    pub fn numbers(self) -> (bool, u16, u8, bool) {
        match self {
            Self::Protocol => (false, 100, 0, false),
            Self::Normal => (false, 40, 2, true),
            Self::Fast => (false, 30, 2, true),
            Self::Fast2 => (true, 20, 2, true),
            Self::Fast3 => (true, 10, 2, true),
        }
    }
}

/// Settings that every make has.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Timing.
    pub preset: Preset,
    /// Byte stream or messages.
    pub mode: Mode,
    /// Send window in segments.
    pub send_window: u16,
    /// Receive window in segments; the other makes raise it to 128.
    pub recv_window: u16,
    /// Largest datagram in bytes.
    pub mtu: u16,
    /// The other makes flush after every turn with input or writes, as their wrappers can be told
    /// to, instead of at the next tick alone.
    pub eager: bool,
    /// What the wire clock starts from.
    pub epoch: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            preset: Preset::Fast2,
            mode: Mode::Stream,
            send_window: 128,
            recv_window: 128,
            mtu: 1_400,
            eager: false,
            epoch: 0,
        }
    }
}

impl Settings {
    /// Payload bytes of a full segment.
    #[must_use]
    pub fn mss(&self) -> usize {
        usize::from(self.mtu) - 24
    }
}

/// The makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    /// The C library.
    C,
    /// The Rust port of it.
    Rust,
    /// This crate.
    Ours,
}

impl Make {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::C, Self::Rust, Self::Ours];

    /// One side with these settings.
    ///
    /// # Errors
    ///
    /// When the make refuses the settings.
    pub fn build(
        self,
        conv: u32,
        settings: &Settings,
        rng: &mut Rng,
    ) -> anyhow::Result<Box<dyn Peer>> {
        Ok(match self {
            Self::C => Box::new(CCore::new(conv, settings)?),
            Self::Rust => Box::new(RustPort::new(conv, settings)?),
            Self::Ours => Box::new(Ours::new(conv, settings, rng, |_| {})?),
        })
    }
}

// ----- ours -----

/// Our state machine.
pub struct Ours {
    kcp: Kcp,
    start: Instant,
    mode: Mode,
    pieces: bool,
    buffer: Vec<u8>,
}

impl fmt::Debug for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stats, ended) = (self.kcp.stats(), self.kcp.close_reason());
        f.debug_struct("Ours").field("ended", &ended).field("stats", &stats).finish_non_exhaustive()
    }
}

impl Ours {
    /// With `settings`, and what `adjust` changes beyond them.
    ///
    /// # Errors
    ///
    /// When the configuration is not valid.
    pub fn new(
        conv: u32,
        settings: &Settings,
        rng: &mut Rng,
        adjust: impl FnOnce(&mut KcpConfig),
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let mut config = KcpConfig::new();
        config.timing = settings.preset.ours();
        config.mode = settings.mode;
        config.send_window = settings.send_window;
        config.recv_window = settings.recv_window;
        config.mtu = settings.mtu;
        adjust(&mut config);
        let seed = Seed { ts_epoch: settings.epoch, cookie_seed: rng.next() };
        Ok(Self {
            kcp: Kcp::new(conv, &config, start, seed)?,
            start,
            mode: settings.mode,
            pieces: false,
            buffer: Vec::new(),
        })
    }

    /// In message mode: each write in segments of its own without fragment numbers, as a kcp-go
    /// session does it.
    #[must_use]
    pub fn in_pieces(mut self) -> Self {
        self.pieces = true;
        self
    }

    /// The state machine itself.
    #[must_use]
    pub fn kcp(&self) -> &Kcp {
        &self.kcp
    }

    /// Asks the peer for a sign of life.
    pub fn probe(&mut self, now: u64) {
        self.kcp.ping(self.at(now));
    }

    /// Ends our stream.
    pub fn close(&mut self, now: u64) {
        self.kcp.close(self.at(now));
    }

    /// Gives the conversation up. Returns whether the peer is told.
    pub fn abort(&mut self, now: u64) -> bool {
        self.kcp.abort(self.at(now))
    }

    fn at(&self, now: u64) -> Instant {
        self.start + Duration::from_millis(now)
    }
}

impl Peer for Ours {
    fn send(&mut self, now: u64, data: &[u8]) -> Option<usize> {
        let at = self.at(now);
        if self.mode == Mode::Message && !self.pieces {
            let message = Bytes::copy_from_slice(data);
            return self.kcp.send_message(at, message).ok().map(|()| data.len());
        }
        let room = self.kcp.send_capacity();
        let len = if self.pieces { data.len() } else { data.len().min(room) };
        if len == 0 || len > room {
            return None;
        }
        self.kcp.send(at, Bytes::copy_from_slice(&data[..len]));
        Some(len)
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        self.kcp.recv().map(Vec::from)
    }

    fn input(&mut self, now: u64, datagram: &[u8]) {
        let result = self.kcp.input(self.at(now), datagram, PacketType::Regular);
        assert_eq!(result, Ok(()), "a datagram of the peer was refused");
    }

    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        let at = self.at(now);
        self.kcp.handle_timeout(at);
        while self.kcp.poll_transmit(at, &mut self.buffer).is_some() {
            out.push(std::mem::take(&mut self.buffer));
        }
    }

    fn next(&self, now: u64) -> Option<u64> {
        let wait = self.kcp.poll_timeout()?.saturating_duration_since(self.at(now));
        let millis = u64::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        Some(now.saturating_add(millis.max(1)))
    }

    fn is_drained(&self) -> bool {
        self.kcp.is_drained()
    }
}

// ----- the other makes -----

/// Where the other makes write their datagrams.
#[derive(Clone, Debug, Default)]
struct Outbox(Rc<RefCell<Vec<Vec<u8>>>>);

impl io::Write for Outbox {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(datagram.to_vec());
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What the two have in common.
#[derive(Debug)]
struct Ticking {
    outbox: Outbox,
    epoch: u32,
    eager: bool,
    /// There was input or a write since the last turn.
    touched: bool,
    /// Wait in milliseconds that the last check asked for.
    wait: u64,
}

impl Ticking {
    fn new(settings: &Settings) -> Self {
        let (epoch, eager) = (settings.epoch, settings.eager);
        Self { outbox: Outbox::default(), epoch, eager, touched: false, wait: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "their clocks wrap")]
    fn clock(&self, now: u64) -> u32 {
        self.epoch.wrapping_add(now as u32)
    }

    /// Whether the other makes' queue has room, and for how many bytes: as their wrappers do it,
    /// until the send window is full.
    fn room(waiting: usize, settings: &Settings, data: usize) -> Option<usize> {
        let segments = usize::from(settings.send_window).saturating_sub(waiting);
        if segments == 0 {
            return None;
        }
        match settings.mode {
            Mode::Message => Some(data),
            Mode::Stream => Some(data.min(segments.min(127) * settings.mss())),
        }
    }

    fn take(&self, out: &mut Vec<Vec<u8>>) {
        out.append(&mut self.outbox.0.borrow_mut());
    }
}

/// The C library.
pub struct CCore {
    kcp: kcp_io::Kcp,
    settings: Settings,
    ticking: Ticking,
}

impl fmt::Debug for CCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CCore").field("waiting", &self.kcp.waitsnd()).finish_non_exhaustive()
    }
}

impl CCore {
    /// With `settings`.
    ///
    /// # Errors
    ///
    /// When it refuses them.
    pub fn new(conv: u32, settings: &Settings) -> anyhow::Result<Self> {
        let ticking = Ticking::new(settings);
        let mut outbox = ticking.outbox.clone();
        let mut kcp =
            kcp_io::Kcp::new(conv, move |datagram| io::Write::write(&mut outbox, datagram))?;
        let (nodelay, interval, resend, nc) = settings.preset.numbers();
        kcp.set_nodelay(nodelay, u32::from(interval), i32::from(resend), nc);
        kcp.set_mtu(u32::from(settings.mtu))?;
        kcp.set_wndsize(u32::from(settings.send_window), u32::from(settings.recv_window));
        kcp.set_stream_mode(settings.mode == Mode::Stream);
        Ok(Self { kcp, settings: *settings, ticking })
    }
}

impl Peer for CCore {
    fn send(&mut self, _now: u64, data: &[u8]) -> Option<usize> {
        let len = Ticking::room(self.kcp.waitsnd() as usize, &self.settings, data.len())?;
        self.kcp.send(&data[..len]).expect("the sizes are within its limits");
        self.ticking.touched = true;
        Some(len)
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.kcp.peeksize().ok()?];
        let len = self.kcp.recv(&mut buffer).expect("it said how much there is");
        assert_eq!(len, buffer.len());
        Some(buffer)
    }

    fn input(&mut self, now: u64, datagram: &[u8]) {
        self.kcp.update(self.ticking.clock(now));
        self.kcp.input(datagram).expect("it takes every datagram of ours");
        self.ticking.touched = true;
    }

    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        let clock = self.ticking.clock(now);
        self.kcp.update(clock);
        if std::mem::take(&mut self.ticking.touched) && self.ticking.eager {
            self.kcp.flush();
        }
        self.ticking.wait = u64::from(self.kcp.check(clock).wrapping_sub(clock));
        self.ticking.take(out);
    }

    fn next(&self, now: u64) -> Option<u64> {
        Some(now + self.ticking.wait.max(1))
    }

    fn is_drained(&self) -> bool {
        self.kcp.waitsnd() == 0
    }
}

/// The Rust port.
#[derive(Debug)]
pub struct RustPort {
    kcp: kcp::Kcp<Outbox>,
    settings: Settings,
    ticking: Ticking,
}

impl RustPort {
    /// With `settings`; its clock starts at zero whatever they say.
    ///
    /// # Errors
    ///
    /// When it refuses them.
    pub fn new(conv: u32, settings: &Settings) -> anyhow::Result<Self> {
        let ticking = Ticking { epoch: 0, ..Ticking::new(settings) };
        let mut kcp = match settings.mode {
            Mode::Stream => kcp::Kcp::new_stream(conv, ticking.outbox.clone()),
            Mode::Message => kcp::Kcp::new(conv, ticking.outbox.clone()),
        };
        let (nodelay, interval, resend, nc) = settings.preset.numbers();
        kcp.set_nodelay(nodelay, i32::from(interval), i32::from(resend), nc);
        kcp.set_mtu(usize::from(settings.mtu))?;
        kcp.set_wndsize(settings.send_window, settings.recv_window);
        Ok(Self { kcp, settings: *settings, ticking })
    }
}

impl Peer for RustPort {
    fn send(&mut self, _now: u64, data: &[u8]) -> Option<usize> {
        let len = Ticking::room(self.kcp.wait_snd(), &self.settings, data.len())?;
        self.kcp.send(&data[..len]).expect("the sizes are within its limits");
        self.ticking.touched = true;
        Some(len)
    }

    fn recv(&mut self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; self.kcp.peeksize().ok()?];
        let len = self.kcp.recv(&mut buffer).expect("it said how much there is");
        assert_eq!(len, buffer.len());
        Some(buffer)
    }

    fn input(&mut self, now: u64, datagram: &[u8]) {
        self.kcp.update(self.ticking.clock(now)).expect("the outbox takes everything");
        self.kcp.input(datagram).expect("it takes every datagram of ours");
        self.ticking.touched = true;
    }

    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        let clock = self.ticking.clock(now);
        self.kcp.update(clock).expect("the outbox takes everything");
        if std::mem::take(&mut self.ticking.touched) && self.ticking.eager {
            self.kcp.flush().expect("the outbox takes everything");
        }
        self.ticking.wait = u64::from(self.kcp.check(clock));
        self.ticking.take(out);
    }

    fn next(&self, now: u64) -> Option<u64> {
        Some(now + self.ticking.wait.max(1))
    }

    fn is_drained(&self) -> bool {
        self.kcp.wait_snd() == 0
    }
}
