//! The sessions of a client: opened on demand, replaced when they end or expire.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use kcpx::Config;
use kcpx_smux::{Error, Session, Stream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use crate::carrier::{Carrier, Link, LinkedStream};
use crate::session::{close, failure, smux_config};
use crate::settings::ClientSettings;
use crate::stats::TunnelStats;
use crate::transport;

/// Time between two attempts to open a session in a slot.
const REDIAL_PAUSE: Duration = Duration::from_secs(1);
/// How long a connection waits for the session of its slot while another one is open.
const STAND_IN_DELAY: Duration = Duration::from_secs(1);
/// Interval at which an expired session is checked for streams.
const SCAVENGE_INTERVAL: Duration = Duration::from_secs(1);

/// The sessions of a client. Connections use them in turn.
pub(crate) struct Pool {
    slots: Vec<Arc<Slot>>,
    next_slot: AtomicUsize,
    dialer: Arc<Dialer>,
    /// One task for each session that is being opened. They end with the pool.
    dials: SyncMutex<JoinSet<()>>,
}

/// State for dialling sessions.
struct Dialer {
    next_number: AtomicU64,
    setup: SyncMutex<Arc<Setup>>,
    /// Sessions that have not ended, including expired ones.
    live: SyncMutex<Vec<Weak<ClientSession>>>,
    stats: Arc<TunnelStats>,
}

/// Settings, and the configuration derived from them.
struct Setup {
    settings: ClientSettings,
    config: Config,
}

/// A slot for one session.
#[derive(Default)]
struct Slot {
    state: SyncMutex<SlotState>,
    /// Notified after each attempt to open the session.
    dialled: Notify,
}

#[derive(Default)]
struct SlotState {
    session: Option<Arc<ClientSession>>,
    /// A task is opening the session, or pauses after a failed attempt: there is one attempt at a
    /// time, however many connections wait.
    is_dialling: bool,
    /// Failed attempts since the last session.
    failures: u64,
    /// Earliest time of the next attempt.
    next_attempt: Option<Instant>,
    /// The port dialled last.
    last_port: Option<u16>,
}

/// A session, displayed as its number and the address of the server.
pub(crate) struct ClientSession {
    smux: Session,
    link: Arc<Link>,
    number: u64,
    peer: SocketAddr,
    expires: Option<Instant>,
    /// Opening a stream has failed: no other stream will be opened.
    is_used_up: AtomicBool,
}

impl Pool {
    pub(crate) fn new(settings: ClientSettings, stats: Arc<TunnelStats>) -> io::Result<Self> {
        let slots = (0..settings.sessions.max(1)).map(|_| Arc::default()).collect();
        let dialer = Dialer {
            next_number: AtomicU64::new(1),
            setup: SyncMutex::new(Arc::new(Setup::new(settings)?)),
            live: SyncMutex::default(),
            stats,
        };
        let dialer = Arc::new(dialer);
        Ok(Self { slots, next_slot: AtomicUsize::new(0), dialer, dials: SyncMutex::default() })
    }

    /// Changes the settings of new sessions; the number of sessions stays.
    pub(crate) fn reload(&self, settings: ClientSettings) -> io::Result<()> {
        *lock(&self.dialer.setup) = Arc::new(Setup::new(settings)?);
        Ok(())
    }

    pub(crate) fn settings(&self) -> ClientSettings {
        self.dialer.setup().settings.clone()
    }

    /// Opens a stream on the next session in turn. Opens that session if needed, retrying each
    /// second until it succeeds; after one second uses another slot's session if one is open.
    /// Cancel safe: the attempt to dial continues for the next connection.
    pub(crate) async fn open_stream(&self) -> (Arc<ClientSession>, Stream) {
        let turn = self.next_slot.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let (slot, start) = (&self.slots[turn], Instant::now());
        loop {
            let mut dialled = pin!(slot.dialled.notified());
            dialled.as_mut().enable();
            let usable = slot.state().usable();
            let session = usable.or_else(|| {
                self.dial(slot);
                let is_overdue = start.elapsed() >= STAND_IN_DELAY || slot.state().failures > 0;
                is_overdue.then(|| self.stand_in(turn)).flatten()
            });
            match session {
                Some(session) => match session.smux.open_stream().await {
                    Ok(stream) => return (session, stream),
                    // It has just ended.
                    Err(_) => session.is_used_up.store(true, Ordering::Relaxed),
                },
                // Checks for another slot's session each second.
                None => drop(timeout(STAND_IN_DELAY, dialled).await),
            }
        }
    }

    /// Returns the session of the next slot after `turn` that has one.
    fn stand_in(&self, turn: usize) -> Option<Arc<ClientSession>> {
        let (before, after) = self.slots.split_at(turn);
        after[1..].iter().chain(before).find_map(|slot| slot.state().usable())
    }

    /// Opens the session of a slot in a task, unless one is running. The task continues when the
    /// waiting connections give up, as they do while a name takes longer to resolve.
    fn dial(&self, slot: &Arc<Slot>) {
        if std::mem::replace(&mut slot.state().is_dialling, true) {
            return;
        }
        let (dialer, slot) = (self.dialer.clone(), slot.clone());
        let mut dials = lock(&self.dials);
        while dials.try_join_next().is_some() {}
        dials.spawn(async move { dialer.open(&slot).await });
    }

    /// Closes all sessions.
    pub(crate) async fn close(&self) {
        lock(&self.dials).abort_all();
        let live = std::mem::take(&mut *lock(&self.dialer.live));
        let mut closing = JoinSet::new();
        for session in live.iter().filter_map(Weak::upgrade) {
            closing.spawn(async move { close(&session.smux, &session.link).await });
        }
        while closing.join_next().await.is_some() {}
    }
}

impl Slot {
    fn state(&self) -> MutexGuard<'_, SlotState> {
        lock(&self.state)
    }
}

impl SlotState {
    fn usable(&self) -> Option<Arc<ClientSession>> {
        self.session.clone().filter(|session| session.is_usable())
    }
}

impl Dialer {
    fn setup(&self) -> Arc<Setup> {
        lock(&self.setup).clone()
    }

    /// Attempts once to open the session of a slot, at least a second after the previous attempt.
    async fn open(&self, slot: &Slot) {
        let next_attempt = slot.state().next_attempt;
        if let Some(next_attempt) = next_attempt {
            sleep_until(next_attempt).await;
        }
        let setup = self.setup();
        let remote = &setup.settings.remote;
        let port = transport::choose_port(&remote.ports, slot.state().last_port);
        slot.state().last_port = Some(port);
        slot.state().next_attempt = Some(Instant::now() + REDIAL_PAUSE);
        let dialled = self.dial(&setup, port).await;
        let mut state = slot.state();
        state.is_dialling = false;
        match dialled {
            Ok(session) => {
                let retries = match std::mem::take(&mut state.failures) {
                    0 => String::new(),
                    failures => format!(" after {failures} failed attempts"),
                };
                info!("{session} opened{retries}");
                if let Some(expired) = state.session.replace(session) {
                    tokio::spawn(expired.scavenge(setup.settings.scavenge_ttl));
                }
            }
            Err(error) => {
                TunnelStats::count(&self.stats.failed_dials);
                // Once for each outage, however many connections wait.
                if state.failures == 0 {
                    let hint = dial_hint(&error);
                    warn!("no session with {remote}, trying again each second: {error}{hint}");
                }
                state.failures += 1;
            }
        }
        drop(state);
        slot.dialled.notify_waiters();
    }

    async fn dial(&self, setup: &Setup, port: u16) -> io::Result<Arc<ClientSession>> {
        let settings = &setup.settings;
        let stream = transport::dial(&settings.remote, port, setup.config.clone()).await?;
        let (peer, endpoint) = (stream.peer_addr()?, stream.endpoint());
        let stream = LinkedStream::new(stream);
        let link = stream.link().clone();
        let registration = self.stats.register(Some(&link), Some(endpoint));
        let carrier = Carrier::new(stream, settings.compression);
        let config = smux_config(&settings.common, settings.smux_version, link.peer_is_kcpx());
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
        let mut live = lock(&self.live);
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
}

fn lock<T>(mutex: &SyncMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Setup {
    fn new(settings: ClientSettings) -> io::Result<Self> {
        let config = transport::config(&settings.common)?;
        smux_config(&settings.common, settings.smux_version, false).validate()?;
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
            // `num_streams` lags behind recently opened streams; their owners hold the session.
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

/// Time without a byte from the server after which the log hints at differing options.
const HINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Options that must be equal on both sides, since nothing is negotiated.
const HINT: &str = "are --key, --crypt, --nocomp, --smuxver and --mux the same on both sides?";

/// Waits for the end of a session and logs it; logs a hint before if no byte has come from the
/// server.
async fn watch(smux: &Session, link: &Link, name: &str, stats: &TunnelStats) {
    let _current = TunnelStats::gauge(&stats.current_sessions);
    let mut is_hinted = false;
    let error = match timeout(HINT_TIMEOUT, smux.closed()).await {
        Ok(error) => error,
        Err(_) => {
            if !link.has_heard() {
                is_hinted = true;
                let seconds = HINT_TIMEOUT.as_secs();
                // A server with a silent target sends nothing before its first keepalive.
                warn!("{name}: no byte from the server within {seconds} s; if this lasts: {HINT}");
            }
            smux.closed().await
        }
    };
    match reason(&error, link, is_hinted) {
        None => info!("{name} closed"),
        Some(reason) => {
            TunnelStats::count(&stats.failed_sessions);
            warn!("{name} ended: {reason}");
        }
    }
}

/// Why a session has ended; `None` if it ended in order.
fn reason(error: &Error, link: &Link, is_hinted: bool) -> Option<String> {
    if link.has_heard() || link.is_closing() {
        return failure(error);
    }
    let hint = if is_hinted { String::new() } else { format!(" ({HINT})") };
    Some(format!("{error}; no byte came from the server{hint}"))
}

/// Possible cause of a failed attempt.
fn dial_hint(error: &io::Error) -> &'static str {
    // With another key or cipher, each side drops the other's datagrams.
    match error.kind() {
        io::ErrorKind::TimedOut => " (are --key and --crypt the same on both sides?)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kcpx::KcpListener;
    use kcpx_smux::Config;
    use tokio::io::duplex;
    use tracing::Dispatch;
    use tracing::subscriber::{DefaultGuard, NoSubscriber};
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;
    use crate::options::Invocation;
    use crate::session::close;
    use crate::settings::Tunnel;

    fn settings(args: &[&str]) -> ClientSettings {
        let program = ["kcpx-tunnel", "client", "-r", "localhost:1"].into_iter();
        let invocation = Invocation::new(program.chain(args.iter().copied()), Default::default());
        let tunnel = invocation.load().unwrap().settings.tunnels.remove(0);
        let Tunnel::Client(settings) = tunnel else { panic!("{tunnel}") };
        settings
    }

    /// A server, and settings of its clients.
    async fn server(args: &[&str]) -> (KcpListener, ClientSettings) {
        let mut settings = settings(args);
        let config = transport::config(&settings.common).unwrap();
        let server = KcpListener::bind_with("127.0.0.1:0", config).await.unwrap();
        let port = server.local_addr().unwrap().port();
        settings.remote.ports = port..=port;
        (server, settings)
    }

    #[test]
    fn session_is_opened_although_the_connection_that_asked_for_it_has_given_up() {
        // The resolver thread is busy for as long as the connection waits.
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (server, settings) = server(&[]).await;
            let blocker = tokio::task::spawn_blocking(move || blocked.recv());
            let stats = Arc::<TunnelStats>::default();
            let pool = Pool::new(settings, stats.clone()).unwrap();
            for _ in 0..2 {
                assert!(timeout(Duration::from_millis(1), pool.open_stream()).await.is_err());
            }
            drop(release);
            assert!(blocker.await.unwrap().is_err());
            let opened = timeout(Duration::from_secs(60), server.accept()).await;
            let client = opened.unwrap().unwrap().1;
            let (session, _stream) = pool.open_stream().await;
            assert_eq!(session.peer, server.local_addr().unwrap());
            assert_eq!(
                (client.ip().is_loopback(), server.stats().connections.passive_opens),
                (true, 1)
            );
            assert_eq!(stats.sessions.load(Ordering::Relaxed), 1);
        });
    }

    #[tokio::test]
    async fn connection_whose_slot_cannot_dial_takes_the_session_of_another_one() {
        let (_server, settings) = server(&["-conn", "3"]).await;
        let stats = Arc::<TunnelStats>::default();
        let pool = Pool::new(settings.clone(), stats.clone()).unwrap();
        let (first, _stream) = pool.open_stream().await;
        // An invalid name, which fails without a lookup, at once.
        let mut unreachable = settings.clone();
        unreachable.remote.host = "\0".into();
        pool.reload(unreachable).unwrap();
        let limit = Duration::from_secs(60);
        let mut streams = Vec::new();
        for _ in 0..5 {
            let (session, stream) = timeout(limit, pool.open_stream()).await.unwrap();
            assert!(Arc::ptr_eq(&session, &first));
            streams.push(stream);
        }
        assert!(stats.failed_dials.load(Ordering::Relaxed) >= 2);
        // The slots that failed are retried, and get their own sessions.
        pool.reload(settings).unwrap();
        timeout(limit, async {
            while Arc::ptr_eq(&pool.open_stream().await.0, &first) {
                sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap();
    }

    #[test]
    fn connection_whose_slot_dials_for_long_takes_the_session_of_another_one() {
        let (release, blocked) = std::sync::mpsc::channel::<()>();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (_server, settings) = server(&["-conn", "2"]).await;
            let stats = Arc::<TunnelStats>::default();
            let pool = Pool::new(settings, stats.clone()).unwrap();
            let (first, _stream) = pool.open_stream().await;
            // The resolver thread is busy from now on.
            let blocker = tokio::task::spawn_blocking(move || blocked.recv());
            let opened = timeout(Duration::from_secs(60), pool.open_stream()).await;
            let (session, _stream) = opened.unwrap();
            assert!(Arc::ptr_eq(&session, &first));
            assert_eq!(stats.failed_dials.load(Ordering::Relaxed), 0);
            drop(release);
            assert!(blocker.await.unwrap().is_err());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn dialling_fails_once_a_second_however_many_connections_wait() {
        let mut settings = settings(&[]);
        // An invalid name, which fails without a lookup, at once.
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
        assert_eq!(pool.dialer.stats.failed_dials.load(Ordering::Relaxed), 10);
    }

    /// The logged lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    impl Lines {
        /// Keeps what this thread logs while the result is alive.
        fn capture(&self) -> (DefaultGuard, Dispatch) {
            // With one dispatcher alone, the first thread that meets an event decides whether anybody wants it, and
            // other tests do not.
            let second = Dispatch::new(NoSubscriber::default());
            let format = tracing_subscriber::fmt().without_time().with_target(false);
            let subscriber = format.with_ansi(false).with_writer(self.clone()).finish();
            (tracing::subscriber::set_default(subscriber), second)
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_not_heard_is_hinted_at_once() {
        let (lines, stats, link) = (Lines::default(), TunnelStats::default(), Link::default());
        let _guard = lines.capture();
        let (near, far) = duplex(65_536);
        let smux = Session::client(near, Config::new()).unwrap();
        watch(&smux, &link, "session 1", &stats).await;
        drop(far);
        let text = lines.text();
        assert_eq!(text.matches(HINT).count(), 1, "{text}");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("no byte from the server within 5 s"), "{text}");
        assert_eq!(stats.failed_sessions.into_inner(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn session_closed_by_a_server_that_was_not_heard_is_a_failure_with_a_hint() {
        let (lines, stats, link) = (Lines::default(), TunnelStats::default(), Link::default());
        let _guard = lines.capture();
        let (near, far) = duplex(65_536);
        let smux = Session::client(near, Config::new()).unwrap();
        drop(far);
        watch(&smux, &link, "session 1", &stats).await;
        let text = lines.text();
        assert!(text.contains("WARN") && text.contains(HINT), "{text}");
        assert_eq!(stats.failed_sessions.into_inner(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn session_closed_by_the_client_is_no_failure() {
        let (lines, stats, link) = (Lines::default(), TunnelStats::default(), Link::default());
        let _guard = lines.capture();
        let (near, _far) = duplex(65_536);
        let smux = Session::client(near, Config::new()).unwrap();
        tokio::join!(watch(&smux, &link, "session 1", &stats), close(&smux, &link));
        let text = lines.text();
        assert!(text.contains("INFO session 1 closed"), "{text}");
        assert_eq!(stats.failed_sessions.into_inner(), 0);
    }
}
