//! The C library and its Rust port as peers.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;

use kcpx::Mode;

use crate::peer::{Peer, Settings};

/// Collects the datagrams of the other implementations.
#[derive(Clone, Debug, Default)]
struct SentDatagrams(Rc<RefCell<Vec<Vec<u8>>>>);

impl io::Write for SentDatagrams {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().push(datagram.to_vec());
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The common part of both.
#[derive(Debug)]
struct Ticking {
    sent: SentDatagrams,
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
        Self { sent: SentDatagrams::default(), epoch, eager, touched: false, wait: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "their clocks wrap")]
    fn clock(&self, now: u64) -> u32 {
        self.epoch.wrapping_add(now as u32)
    }

    /// Bytes of `data` that their queue takes; `None` when it is full: as their wrappers do it,
    /// until the send window is full.
    fn capacity(waiting: usize, settings: &Settings, data: usize) -> Option<usize> {
        let segments = usize::from(settings.send_window).saturating_sub(waiting);
        if segments == 0 {
            return None;
        }
        match settings.mode {
            Mode::Stream => Some(data.min(segments.min(127) * settings.mss())),
            _ => Some(data),
        }
    }

    fn take(&self, out: &mut Vec<Vec<u8>>) {
        out.append(&mut self.sent.0.borrow_mut());
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
    /// When it rejects them.
    pub fn new(conv: u32, settings: &Settings) -> anyhow::Result<Self> {
        let ticking = Ticking::new(settings);
        let mut sent = ticking.sent.clone();
        let mut kcp =
            kcp_io::Kcp::new(conv, move |datagram| io::Write::write(&mut sent, datagram))?;
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
        let len = Ticking::capacity(self.kcp.waitsnd() as usize, &self.settings, data.len())?;
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
    kcp: kcp::Kcp<SentDatagrams>,
    settings: Settings,
    ticking: Ticking,
}

impl RustPort {
    /// With `settings`; its clock starts at zero whatever they say.
    ///
    /// # Errors
    ///
    /// When it rejects them.
    pub fn new(conv: u32, settings: &Settings) -> anyhow::Result<Self> {
        let ticking = Ticking { epoch: 0, ..Ticking::new(settings) };
        let mut kcp = match settings.mode {
            Mode::Stream => kcp::Kcp::new_stream(conv, ticking.sent.clone()),
            _ => kcp::Kcp::new(conv, ticking.sent.clone()),
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
        let len = Ticking::capacity(self.kcp.wait_snd(), &self.settings, data.len())?;
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
        self.kcp.update(self.ticking.clock(now)).expect("the output buffer takes everything");
        self.kcp.input(datagram).expect("it takes every datagram of ours");
        self.ticking.touched = true;
    }

    fn update(&mut self, now: u64, out: &mut Vec<Vec<u8>>) {
        let clock = self.ticking.clock(now);
        self.kcp.update(clock).expect("the output buffer takes everything");
        if std::mem::take(&mut self.ticking.touched) && self.ticking.eager {
            self.kcp.flush().expect("the output buffer takes everything");
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
