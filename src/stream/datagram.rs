//! Unreliable datagrams of a connection (kcp-go's out-of-band packets, QUIC DATAGRAM).

use std::future::poll_fn;
use std::io::{Error, ErrorKind, Result};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::KcpStream;
use crate::config::Setting;
use crate::fec::{FecConfig, oob};
use crate::shared::connection::Shared;
use crate::stream::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::util::coop::cooperate;
use crate::util::sync::Ordering;

/// Unreliable datagrams beside the stream: kcp-go's out-of-band packets.
///
/// They are neither retransmitted nor ordered, are encrypted as everything else, and never open a
/// connection: they wait until the stream has sent something, and are lost when they arrive before
/// that, or before the address of a peer that opened the connection is validated, a round trip later
/// ([`established`](Self::established)). Dropping the stream discards those that wait. Without a cipher a reflected datagram
/// cannot be distinguished from one of the peer. Datagrams share a header with FEC, so
/// [`Config::fec`](crate::Config::fec) must be set on the side that sends; receiving needs no
/// setting. A kcp-go peer needs a version of 2026: older ones take such a packet for a malformed
/// segment, and an old server may then end the connection when bytes 0 to 3 of the payload are
/// zero.
impl KcpStream {
    /// Queues a datagram. It leaves in the driver's next turn, in alternation with datagrams of
    /// the stream.
    ///
    /// At most 256 KiB wait; beyond that the oldest is dropped, and
    /// [`ConnectionStats::out_of_band_dropped`](crate::ConnectionStats::out_of_band_dropped)
    /// counts that.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) without [`Config::fec`](crate::Config::fec);
    /// [`InvalidInput`](ErrorKind::InvalidInput) above
    /// [`max_datagram_size`](Self::max_datagram_size); the
    /// [`ConnectionError`](crate::ConnectionError) once the connection has ended.
    #[doc(alias = "DATAGRAM")]
    pub fn send_datagram(&self, datagram: &[u8]) -> Result<()> {
        send(self.handle(), datagram)
    }

    /// Waits for a datagram and returns it.
    ///
    /// At most 256 KiB wait to be read; beyond that the oldest is dropped.
    ///
    /// # Errors
    ///
    /// The [`ConnectionError`](crate::ConnectionError) after the datagrams that arrived before it.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost. When several tasks wait, the last one that asked is woken.
    pub async fn recv_datagram(&self) -> Result<Bytes> {
        poll_fn(|cx| self.poll_recv_datagram(cx)).await
    }

    /// Polls for a datagram, as [`recv_datagram`](Self::recv_datagram).
    ///
    /// # Errors
    ///
    /// As [`recv_datagram`](Self::recv_datagram).
    pub fn poll_recv_datagram(&self, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        recv(self.handle(), cx)
    }

    /// Returns a datagram that has arrived, without waiting.
    ///
    /// # Errors
    ///
    /// [`WouldBlock`](ErrorKind::WouldBlock) if there is none; otherwise as
    /// [`recv_datagram`](Self::recv_datagram).
    pub fn try_recv_datagram(&self) -> Result<Bytes> {
        try_recv(self.handle())
    }

    /// Returns the largest datagram in bytes that can be sent now, or `None` where none can be:
    /// without [`Config::fec`](crate::Config::fec). It falls with the MTU of the path.
    #[must_use]
    pub fn max_datagram_size(&self) -> Option<usize> {
        limit(self.handle())
    }

    /// Changes the FEC shards of what this side sends to the address of the peer, on all
    /// connections with it.
    ///
    /// At least the next 516 packets carry no parity: a kcp-go receiver would compute wrong data
    /// out of groups of both layouts. kcp-go forgets the old layout after some 258 packets, and
    /// recovers nothing until it has learned the new one (`autoTune`): without loss and from version
    /// 5.7.5 on from two groups after these 516 packets, version 5.6.72 at 10 % loss from some 250 packets
    /// more. This crate learns it within two groups. So change it rarely.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) without [`Config::fec`](crate::Config::fec): the
    /// segment size does not reserve its header. [`InvalidInput`](ErrorKind::InvalidInput) if data has
    /// been sent to the address of the peer, in groups of fewer shards, data and parity together, and
    /// the peer is not known to be kcpx; where two connections to the address change the ratio at once,
    /// the later change is ignored instead. kcp-go 5.6.72 compares the numbers of groups, and larger groups have smaller
    /// numbers, which are late ones to it; version 5.7.5 takes them.
    pub fn set_fec(&self, fec: FecConfig) -> Result<()> {
        set_fec(self.handle(), fec)
    }
}

macro_rules! halves {
    ($($reader:ty, $writer:ty);*) => {$(
        impl $reader {
            /// Waits for an out-of-band datagram, as [`KcpStream::recv_datagram`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::recv_datagram`].
            ///
            /// # Cancel safety
            ///
            /// Nothing is lost.
            pub async fn recv_datagram(&self) -> Result<Bytes> {
                poll_fn(|cx| recv(self.handle(), cx)).await
            }

            /// Returns an out-of-band datagram that has arrived, as
            /// [`KcpStream::try_recv_datagram`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::try_recv_datagram`].
            pub fn try_recv_datagram(&self) -> Result<Bytes> {
                try_recv(self.handle())
            }
        }

        impl $writer {
            /// Queues an out-of-band datagram, as [`KcpStream::send_datagram`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::send_datagram`].
            pub fn send_datagram(&self, datagram: &[u8]) -> Result<()> {
                send(self.handle(), datagram)
            }

            /// Returns the largest datagram in bytes that can be sent now, as
            /// [`KcpStream::max_datagram_size`].
            #[must_use]
            pub fn max_datagram_size(&self) -> Option<usize> {
                limit(self.handle())
            }

            /// Changes the FEC shards of what this side sends, as [`KcpStream::set_fec`].
            ///
            /// # Errors
            ///
            /// As [`KcpStream::set_fec`].
            pub fn set_fec(&self, fec: FecConfig) -> Result<()> {
                set_fec(self.handle(), fec)
            }
        }
    )*};
}

halves!(OwnedReadHalf, OwnedWriteHalf; ReadHalf<'_>, WriteHalf<'_>);

fn send(shared: &Shared, datagram: &[u8]) -> Result<()> {
    check_framed(shared)?;
    let (size, max) = (datagram.len(), limit(shared).unwrap_or(0));
    if size > max {
        let text = format!("the datagram has {size} bytes, allowed are {max}");
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    shared.send_datagram(Bytes::copy_from_slice(datagram))
}

fn recv(shared: &Shared, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
    cooperate(cx, |cx| shared.poll_datagram(Some(cx.waker())))
}

fn try_recv(shared: &Shared) -> Result<Bytes> {
    match shared.poll_datagram(None) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(ErrorKind::WouldBlock.into()),
    }
}

fn limit(shared: &Shared) -> Option<usize> {
    let kcp = shared.mtu.load(Ordering::Relaxed).saturating_sub(shared.overhead);
    shared.framed.then(|| kcp.saturating_sub(oob::CONV_LEN))
}

fn set_fec(shared: &Shared, fec: FecConfig) -> Result<()> {
    check_framed(shared)?;
    let (shards, max) = (fec.shards(), shared.max_fec_shards.load(Ordering::Relaxed));
    if shards > max {
        let text = format!(
            "FEC groups of {shards} shards: a peer that is not known to be kcpx cannot change to \
             more than {max}"
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    if max < FecConfig::MAX_SHARDS {
        shared.max_fec_shards.store(shards, Ordering::Relaxed);
    }
    shared.set(Setting::Fec(fec));
    Ok(())
}

fn check_framed(shared: &Shared) -> Result<()> {
    if shared.framed {
        return Ok(());
    }
    let text = "this needs the header that FEC adds: set Config::fec";
    Err(Error::new(ErrorKind::Unsupported, text))
}
