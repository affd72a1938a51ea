//! The operating system: signals as values, the limit of open file descriptors (sockets included), and
//! systemd's notifications (sd_notify(3)).

use std::io;

/// The request of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM, SIGINT or Ctrl-C: end.
    Shutdown,
    /// SIGHUP: reopen the log, and read the file of `-c` again.
    Reload,
    /// SIGUSR1: write the counters into the log.
    Dump,
}

/// Receives signals from its creation on, in place of their default actions.
#[derive(Debug)]
pub struct Signals {
    #[cfg(unix)]
    unix: unix::Streams,
}

impl Signals {
    /// Begins to receive signals. Needs a Tokio runtime.
    ///
    /// # Errors
    ///
    /// If the system denies it.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            unix: unix::Streams::new()?,
        })
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// No signal is lost when the future is dropped, but several of a kind may count as one.
    pub async fn next(&mut self) -> Signal {
        #[cfg(unix)]
        return self.unix.next().await;
        #[cfg(not(unix))]
        {
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
            Signal::Shutdown
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::io;

    use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

    use super::Signal;

    #[derive(Debug)]
    pub(super) struct Streams {
        terminate: Stream,
        interrupt: Stream,
        hangup: Stream,
        user: Stream,
    }

    impl Streams {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
                hangup: signal(SignalKind::hangup())?,
                user: signal(SignalKind::user_defined1())?,
            })
        }

        pub(super) async fn next(&mut self) -> Signal {
            // The streams do not end while the runtime exists.
            tokio::select! {
                _ = self.terminate.recv() => Signal::Shutdown,
                _ = self.interrupt.recv() => Signal::Shutdown,
                _ = self.hangup.recv() => Signal::Reload,
                _ = self.user.recv() => Signal::Dump,
            }
        }
    }
}

/// Assumed if the system has no such limit, or it is unknown.
const UNKNOWN: u64 = 16_384;

/// Raises the soft limit to the hard limit and returns it: most systems start a program with 1,024.
///
/// # Errors
///
/// If the system denies it.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit, setrlimit};

        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        // macOS takes no more, whatever the hard limit is (OPEN_MAX).
        let raised = if cfg!(target_vendor = "apple") { hard.min(10_240) } else { hard };
        if soft < raised {
            setrlimit(Resource::RLIMIT_NOFILE, raised, hard)?;
        }
        Ok(raised.max(soft))
    }
    #[cfg(not(unix))]
    Ok(UNKNOWN)
}

/// Returns the current limit.
pub(crate) fn descriptor_limit() -> u64 {
    #[cfg(unix)]
    {
        use nix::sys::resource::{Resource, getrlimit};

        getrlimit(Resource::RLIMIT_NOFILE).map_or(UNKNOWN, |(soft, _)| soft)
    }
    #[cfg(not(unix))]
    UNKNOWN
}

/// The socket of `NOTIFY_SOCKET`, if systemd has set it.
///
/// ```
/// use kcpx_tunnel::process::Notifier;
///
/// // Outside systemd nothing is sent.
/// Notifier::new(None).notify("READY=1")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    socket: Option<String>,
}

impl Notifier {
    /// All tunnels listen.
    pub const READY: &'static str = "READY=1";
    /// A signal to end has arrived.
    pub const STOPPING: &'static str = "STOPPING=1";
    /// SIGHUP has arrived; `READY` follows.
    pub const RELOADING: &'static str = "RELOADING=1";

    /// Takes the value of `NOTIFY_SOCKET`: a path, or on Linux `@` and an abstract name.
    #[must_use]
    pub fn new(socket: Option<String>) -> Self {
        Self { socket: socket.filter(|socket| !socket.is_empty()) }
    }

    /// Sends one state. Does not block beyond the time of a local datagram.
    ///
    /// # Errors
    ///
    /// If there is a socket and it does not take the datagram.
    pub fn notify(&self, state: &str) -> io::Result<()> {
        match &self.socket {
            Some(socket) => send(socket, state),
            None => Ok(()),
        }
    }
}

#[cfg(unix)]
fn send(socket: &str, state: &str) -> io::Result<()> {
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let address = match socket.strip_prefix('@') {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        Some(name) => {
            #[cfg(target_os = "android")]
            use std::os::android::net::SocketAddrExt;
            #[cfg(target_os = "linux")]
            use std::os::linux::net::SocketAddrExt;
            SocketAddr::from_abstract_name(name)?
        }
        _ => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(not(unix))]
fn send(_socket: &str, _state: &str) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    use tempfile::TempDir;

    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut buffer = [0; 64];
        let len = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    #[test]
    fn states_arrive_at_the_socket_of_the_path() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let notifier = Notifier::new(Some(path.to_str().unwrap().to_owned()));
        for state in [Notifier::READY, Notifier::RELOADING, Notifier::STOPPING] {
            notifier.notify(state).unwrap();
            assert_eq!(received(&socket), state);
        }
        drop(socket);
        assert!(notifier.notify(Notifier::READY).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn states_arrive_at_an_abstract_socket() {
        use std::os::linux::net::SocketAddrExt;
        use std::os::unix::net::SocketAddr;

        let name = format!("kcpx-tunnel-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        Notifier::new(Some(format!("@{name}"))).notify(Notifier::READY).unwrap();
        assert_eq!(received(&socket), "READY=1");
    }

    #[test]
    fn without_a_socket_nothing_is_sent() {
        assert!(Notifier::new(None).notify(Notifier::READY).is_ok());
        assert!(Notifier::new(Some(String::new())).notify(Notifier::READY).is_ok());
    }
}
