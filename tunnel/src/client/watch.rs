//! Log of a client's sessions: a silent server, and the ends of sessions.

use std::io;
use std::time::Duration;

use kcpx_smux::{Error, Session};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::carrier::Link;
use crate::session::failure;
use crate::stats::TunnelStats;

/// Time without a byte from the server after which the log hints at differing options.
const HINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Options that must be equal on both sides, since nothing is negotiated.
const HINT: &str = "are --key, --crypt, --nocomp, --smuxver and --mux the same on both sides?";

/// Waits for the end of a session and logs it; logs a hint before if no byte has come from the
/// server.
pub(super) async fn watch(smux: &Session, link: &Link, name: &str, stats: &TunnelStats) {
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
pub(super) fn dial_hint(error: &io::Error) -> &'static str {
    // With another key or cipher, each side drops the other's datagrams.
    match error.kind() {
        io::ErrorKind::TimedOut => " (are --key and --crypt the same on both sides?)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kcpx_smux::Config;
    use tokio::io::duplex;
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;
    use crate::session::close;

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
        fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync {
            let format = tracing_subscriber::fmt().without_time().with_target(false);
            format.with_ansi(false).with_writer(self.clone()).finish()
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_is_not_heard_is_hinted_at_once() {
        let (lines, stats, link) = (Lines::default(), TunnelStats::default(), Link::default());
        let _guard = tracing::subscriber::set_default(lines.subscriber());
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
        let _guard = tracing::subscriber::set_default(lines.subscriber());
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
        let _guard = tracing::subscriber::set_default(lines.subscriber());
        let (near, _far) = duplex(65_536);
        let smux = Session::client(near, Config::new()).unwrap();
        tokio::join!(watch(&smux, &link, "session 1", &stats), close(&smux, &link));
        let text = lines.text();
        assert!(text.contains("INFO session 1 closed"), "{text}");
        assert_eq!(stats.failed_sessions.into_inner(), 0);
    }
}
