//! kcpx's state machine as a peer.

use std::fmt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kcpx::proto::{Kcp, PacketType, Seed};
use kcpx::{Config, Mode};

use crate::link::Rng;
use crate::peer::{Peer, Settings};

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
        adjust: impl FnOnce(Config) -> Config,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let (timing, congestion_control) = settings.preset.ours();
        let mut config = Config::new()
            .timing(timing)
            .congestion_control(congestion_control)
            .mode(settings.mode)
            .mtu(settings.mtu);
        let windows = (settings.send_window, settings.recv_window);
        // Windows of the default size keep growing.
        if windows != (1_024, 1_024) {
            config = config.windows(windows.0, windows.1);
        }
        let config = adjust(config);
        let seed = Seed::new(settings.epoch, rng.next());
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

    /// Requests a ping.
    pub fn ping(&mut self, now: u64) {
        self.kcp.ping(self.at(now));
    }

    /// Closes our direction (FIN).
    pub fn close(&mut self, now: u64) {
        self.kcp.close(self.at(now));
    }

    /// Aborts the connection. Returns whether a RST is sent.
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
        let capacity = self.kcp.send_capacity();
        let len = if self.pieces { data.len() } else { data.len().min(capacity) };
        if len == 0 || capacity == 0 {
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
