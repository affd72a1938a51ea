//! qlog of an endpoint: a file for each connection, written by one thread.
//!
//! The driver appends the records of a connection after it was served, and never waits for the disk: records that
//! find the queue full are dropped and counted.

#![cfg_attr(
    not(feature = "qlog"),
    expect(unused_variables, clippy::needless_pass_by_ref_mut, reason = "the feature is off")
)]

#[cfg(feature = "qlog")]
mod writer;

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use crate::config::Config;
use crate::driver::connection::Conn;

#[cfg(feature = "qlog")]
use self::writer::{Refused, Writer};
#[cfg(feature = "qlog")]
use crate::core::qlog::log::Title;

/// Most bytes that wait for the validation of a peer. It may be forged, and gets no file before.
#[cfg(feature = "qlog")]
const MAX_UNVALIDATED: usize = 16 << 10;

/// The logs of the connections, if they are wanted.
#[derive(Debug)]
pub(super) struct Qlogs {
    #[cfg(feature = "qlog")]
    writer: Option<Writer>,
}

impl Qlogs {
    /// Checks the folder, and starts the thread.
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            #[cfg(feature = "qlog")]
            writer: config.qlog.as_deref().map(Writer::start).transpose()?,
        })
    }

    /// Starts the log of a new connection.
    #[inline]
    pub(super) fn open(&mut self, conn: &mut Conn, local: SocketAddr) {
        #[cfg(feature = "qlog")]
        if let Some(writer) = &mut self.writer {
            let (peer, conv) = conn.key();
            let is_client = !conn.is_opened_by_peer();
            let reference_time = writer::unix_micros();
            let title = Title { conv, is_client, local, peer, reference_time };
            conn.kcp.start_qlog(writer.next_id(), &title);
        }
    }

    /// A connection was served: takes its records.
    #[inline]
    pub(super) fn write(&self, now: Instant, conn: &mut Conn) {
        #[cfg(feature = "qlog")]
        if let Some(writer) = &self.writer {
            let (peer, is_unvalidated) = (conn.qlog_peer(), conn.is_unvalidated());
            let Some(log) = conn.kcp.qlog(now, peer) else { return };
            let refused = if is_unvalidated {
                (log.records().len() > MAX_UNVALIDATED).then_some(Refused::Full)
            } else {
                writer.append(log).err()
            };
            match refused {
                None => {}
                Some(Refused::Full) => log.drop_records(),
                Some(Refused::TooMany | Refused::Ended) => drop(conn.kcp.take_qlog()),
            }
        }
    }

    /// Takes the last records of a connection, and closes its file.
    #[inline]
    pub(super) fn close(&self, now: Instant, conn: &mut Conn) {
        self.write(now, conn);
        #[cfg(feature = "qlog")]
        if let Some(writer) = &self.writer
            && let Some(log) = conn.kcp.take_qlog()
        {
            writer.close(&log);
        }
    }
}
