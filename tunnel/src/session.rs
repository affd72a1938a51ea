//! Parts of a session common to both roles: its smux settings, and the end of a tunnel.
//!
//! At the end, connections may finish, and the rest is reset. Sessions are closed before the tasks of
//! their connections are aborted: an aborted task would send FIN, which the other side takes for a
//! complete stream.

use std::time::Duration;

use kcpx_smux::{Error, Session, Version};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::carrier::Link;
use crate::settings::{Common, SmuxVersion};

/// Delay of FIN towards a peer that sent FIN first, if `closewait` was not given and the peer may
/// be kcptun: smux 1.5.54 to 1.5.57 discards unread bytes once both sides have sent FIN.
const FIN_DELAY: Duration = Duration::from_secs(1);
/// Limit for closing a session in order, and for delivering the last bytes of closed connections.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The smux settings of a session. `peer_is_kcpx`: the peer is known to run this program.
pub(crate) fn smux_config(
    common: &Common,
    version: SmuxVersion,
    peer_is_kcpx: bool,
) -> kcpx_smux::Config {
    let delays_fin = common.close_wait.is_none() && !peer_is_kcpx;
    let fin_delay = if delays_fin { FIN_DELAY } else { Duration::ZERO };
    kcpx_smux::Config::new()
        .version(match version {
            SmuxVersion::V1 => Version::V1,
            SmuxVersion::V2 => Version::V2,
        })
        .keepalive(Some(common.keepalive))
        .timeout(common.keepalive_timeout())
        .max_frame_size(common.frame_size.into())
        .max_receive_buffer(common.smux_buffer as usize)
        .max_stream_buffer(common.stream_buffer as usize)
        .fin_delay(fin_delay)
}

/// Sends the queued bytes and closes the session, within two seconds.
pub(crate) async fn close(session: &Session, link: &Link) {
    link.set_closing();
    // On an error, or if time is up, the peer is gone, and dropping the session ends it.
    drop(timeout(CLOSE_TIMEOUT, session.close()).await);
}

/// Why a session has ended, for the log. `None` if it ended in order.
pub(crate) fn failure(error: &Error) -> Option<String> {
    match error {
        Error::Closed => None,
        other => Some(other.to_string()),
    }
}

/// Waits for all tasks, at most `limit`.
pub(crate) async fn drain(tasks: &mut JoinSet<()>, limit: Duration) {
    let all = async { while tasks.join_next().await.is_some() {} };
    drop(timeout(limit, all).await);
}
