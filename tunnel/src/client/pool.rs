//! The sessions of a client: opened when a connection needs one, replaced when they end or expire.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError, Weak};
use std::time::Duration;

use kcpx::Config;
use kcpx_smux::{Session, Stream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::watch::{dial_hint, watch};
use crate::carrier::{Carrier, Link, LinkedStream};
use crate::session::{close, smux_config};
use crate::settings::ClientSettings;
use crate::stats::TunnelStats;
use crate::transport;

/// Pause after a session could not be opened.
const REDIAL_PAUSE: Duration = Duration::from_secs(1);
/// How often an expired session is checked for streams.
const SCAVENGE_INTERVAL: Duration = Duration::from_secs(1);

/// The sessions of a client, over which its connections go in turn.
pub(crate) struct Pool {
    /// A lock is held while the slot's session is opened and in the pause after a failed attempt, so that
    /// there is one attempt at a time, however many connections wait.
    slots: Vec<Mutex<Slot>>,
    next_slot: AtomicUsize,
    next_number: AtomicU64,
    setup: SyncMutex<Arc<Setup>>,
    /// Sessions that have not ended, expired ones too.
    live: SyncMutex<Vec<Weak<ClientSession>>>,
    stats: Arc<TunnelStats>,
}

/// Settings, and the configuration made of them.
struct Setup {
    settings: ClientSettings,
    config: Config,
}

#[derive(Default)]
struct Slot {
    session: Option<Arc<ClientSession>>,
    /// Attempts since the last session that failed.
    failures: u64,
    /// When another session may be dialled at the earliest, after an attempt that failed or was dropped.
    next_attempt: Option<Instant>,
    /// The port that was dialled last.
    last_port: Option<u16>,
}

/// A session, displayed as its number and the address of the server.
pub(crate) struct ClientSession {
    smux: Session,
    link: Arc<Link>,
    number: u64,
    peer: SocketAddr,
    expires: Option<Instant>,
    /// True once a stream could not be opened: no other one will be.
    is_used_up: AtomicBool,
}

impl Pool {
    pub(crate) fn new(settings: ClientSettings, stats: Arc<TunnelStats>) -> io::Result<Self> {
        let slots = (0..settings.sessions.max(1)).map(|_| Mutex::default()).collect();
        let setup = SyncMutex::new(Arc::new(Setup::new(settings)?));
        Ok(Self {
            slots,
            next_slot: AtomicUsize::new(0),
            next_number: AtomicU64::new(1),
            setup,
            live: SyncMutex::default(),
            stats,
        })
    }

    /// Settings of new sessions; the number of sessions stays.
    pub(crate) fn reload(&self, settings: ClientSettings) -> io::Result<()> {
        let setup = Arc::new(Setup::new(settings)?);
        *self.setup.lock().unwrap_or_else(PoisonError::into_inner) = setup;
        Ok(())
    }

    pub(crate) fn settings(&self) -> ClientSettings {
        self.setup().settings.clone()
    }

    fn setup(&self) -> Arc<Setup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a stream on the session whose turn it is, and that session if need be, again each second
    /// until it succeeds. Cancel safe.
    pub(crate) async fn open_stream(&self) -> (Arc<ClientSession>, Stream) {
        let turn = self.next_slot.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        loop {
            // Streams are opened under the lock: an expired session, once replaced, gets no more.
            let mut slot = self.slots[turn].lock().await;
            // A session that has just ended is replaced at once.
            for _ in 0..2 {
                let Some(session) = self.session(&mut slot).await else { break };
                match session.smux.open_stream().await {
                    Ok(stream) => return (session, stream),
                    Err(_) => session.is_used_up.store(true, Ordering::Relaxed),
                }
            }
            slot.next_attempt = Some(Instant::now() + REDIAL_PAUSE);
        }
    }

    /// The session of a slot, a new one if it has ended or expired; `None` if that cannot be opened.
    async fn session(&self, slot: &mut Slot) -> Option<Arc<ClientSession>> {
        if let Some(session) = slot.session.as_ref().filter(|session| session.is_usable()) {
            return Some(session.clone());
        }
        if let Some(next_attempt) = slot.next_attempt {
            sleep_until(next_attempt).await;
        }
        // Also when this future is dropped while it dials.
        slot.next_attempt = Some(Instant::now() + REDIAL_PAUSE);
        let setup = self.setup();
        let remote = &setup.settings.remote;
        let port = transport::choose_port(&remote.ports, slot.last_port);
        slot.last_port = Some(port);
        match self.dial(&setup, port).await {
            Ok(session) => {
                slot.next_attempt = None;
                let retries = match std::mem::take(&mut slot.failures) {
                    0 => String::new(),
                    failures => format!(" after {failures} failed attempts"),
                };
                info!("{session} opened{retries}");
                if let Some(expired) = slot.session.replace(session.clone()) {
                    tokio::spawn(expired.scavenge(setup.settings.scavenge_ttl));
                }
                Some(session)
            }
            Err(error) => {
                TunnelStats::count(&self.stats.failed_dials);
                // Once for each outage, however many connections wait.
                if slot.failures == 0 {
                    let hint = dial_hint(&error);
                    warn!("no session with {remote}, trying again each second: {error}{hint}");
                }
                slot.failures += 1;
                None
            }
        }
    }

    async fn dial(&self, setup: &Setup, port: u16) -> io::Result<Arc<ClientSession>> {
        let settings = &setup.settings;
        let stream = transport::dial(&settings.remote, port, setup.config.clone()).await?;
        let (peer, endpoint) = (stream.peer_addr()?, stream.endpoint());
        let stream = LinkedStream::new(stream);
        let link = stream.link().clone();
        let registration = self.stats.register(Some(&link), Some(endpoint));
        let carrier = Carrier::new(stream, settings.compression);
        let config = smux_config(&settings.common, settings.smux_version);
        let smux = Session::client(carrier, config)?;
        registration.add_session(&smux);
        TunnelStats::count(&self.stats.sessions);
        let session = Arc::new(ClientSession {
            smux: smux.clone(),
            link: link.clone(),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            peer,
            expires: settings.auto_expire.map(|age| Instant::now() + age),
            is_used_up: AtomicBool::new(false),
        });
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.retain(|session| session.strong_count() > 0);
        live.push(Arc::downgrade(&session));
        drop(live);
        let (stats, name) = (self.stats.clone(), session.to_string());
        tokio::spawn(async move {
            watch(&smux, &link, &name, &stats).await;
            drop(registration);
        });
        Ok(session)
    }

    /// Closes all sessions.
    pub(crate) async fn close(&self) {
        let live = std::mem::take(&mut *self.live.lock().unwrap_or_else(PoisonError::into_inner));
        let mut closing = JoinSet::new();
        for session in live.iter().filter_map(Weak::upgrade) {
            closing.spawn(async move { close(&session.smux, &session.link).await });
        }
        while closing.join_next().await.is_some() {}
    }
}

impl Setup {
    fn new(settings: ClientSettings) -> io::Result<Self> {
        let config = transport::config(&settings.common)?;
        smux_config(&settings.common, settings.smux_version).validate()?;
        Ok(Self { settings, config })
    }
}

impl ClientSession {
    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    fn is_usable(&self) -> bool {
        !self.is_used_up.load(Ordering::Relaxed)
            && !self.smux.is_closed()
            && self.expires.is_none_or(|expires| Instant::now() < expires)
    }

    /// Closes the session once it has no streams, or after `ttl`.
    async fn scavenge(self: Arc<Self>, ttl: Option<Duration>) {
        let end = ttl.map(|ttl| Instant::now() + ttl);
        loop {
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            // `num_streams` lags behind streams that were opened a moment ago: who has one holds the session.
            let is_unused = Arc::strong_count(&self) == 1 && self.smux.num_streams() == 0;
            if is_over || is_unused || self.smux.is_closed() {
                return close(&self.smux, &self.link).await;
            }
            sleep(SCAVENGE_INTERVAL).await;
        }
    }
}

impl fmt::Display for ClientSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} with {}", self.number, self.peer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::options::Invocation;
    use crate::settings::Tunnel;

    #[tokio::test(start_paused = true)]
    async fn dialling_fails_once_a_second_however_many_connections_wait() {
        let invocation =
            Invocation::new(["kcpx-tunnel", "client", "-r", "x:1"], Default::default());
        let tunnel = invocation.load().unwrap().settings.tunnels.remove(0);
        let Tunnel::Client(mut settings) = tunnel else { panic!("{tunnel}") };
        // No name, so that it is not resolved, at once.
        settings.remote.host = "\0".into();
        let pool = Arc::new(Pool::new(settings, Arc::default()).unwrap());
        let mut waiting = JoinSet::new();
        for _ in 0..100 {
            let pool = pool.clone();
            waiting.spawn(async move {
                let opened = pool.open_stream();
                timeout(Duration::from_millis(9_500), opened).await.is_err()
            });
        }
        while let Some(timed_out) = waiting.join_next().await {
            assert!(timed_out.unwrap());
        }
        // At 0 to 9 s.
        assert_eq!(pool.stats.failed_dials.load(Ordering::Relaxed), 10);
    }
}
