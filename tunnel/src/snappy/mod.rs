//! The Snappy framing format over a carrier, like golang/snappy's buffered writer and reader.
//!
//! kcptun compresses in this way unless it has `--nocomp`. Each direction begins with a stream
//! identifier, followed by chunks of at most 65,536 bytes, each with a CRC-32C. The bytes between
//! two flushes are one chunk, or several if they are longer. Incompressible data costs 8 bytes per
//! chunk, and the time of the attempt.

mod chunk;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use snap::raw::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use self::chunk::SnappyError;
use self::chunk::{HEADER_LEN, Header, MAX_BODY, MAX_DATA, STREAM_IDENTIFIER};

/// Least bytes of a read from the carrier: more than the longest chunk.
const INPUT_LEN: usize = 80 * 1024;

/// Bytes of a chunk while the carrier is slower than its writer and data does not shrink: later
/// bytes wait behind a chunk, which the peer can read only once it is complete. For data that
/// shrinks, shorter chunks would cost bytes.
const WAITING_DATA: usize = 8 * 1024;

/// Compresses the bytes of a carrier.
///
/// * `write` collects up to 65,536 bytes, or 8,192 while the carrier is slow and they do not
///   shrink, and then writes a chunk. It waits while the carrier has no capacity for the previous
///   chunk.
/// * `flush` writes the collected bytes as a chunk, and flushes the carrier.
/// * `read` returns the data of complete chunks with a valid checksum. Malformed input is an error
///   of kind [`InvalidData`](io::ErrorKind::InvalidData) around a [`SnappyError`], an end inside a
///   chunk is [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
///
/// Memory: up to 300 KiB, once that much was read and written.
///
/// ```
/// use kcpx_tunnel::snappy::SnappyStream;
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let (client, server) = tokio::io::duplex(4096);
/// let (mut client, mut server) = (SnappyStream::new(client), SnappyStream::new(server));
/// client.write_all(b"hello").await?;
/// client.flush().await?;
/// let mut text = [0; 5];
/// server.read_exact(&mut text).await?;
/// assert_eq!(&text, b"hello");
/// # Ok(())
/// # }
/// ```
pub struct SnappyStream<T> {
    carrier: T,
    input: Input,
    output: Output,
}

impl<T> SnappyStream<T> {
    /// Compresses bytes written to `carrier`, and decompresses bytes read from it.
    pub fn new(carrier: T) -> Self {
        Self { carrier, input: Input::default(), output: Output::default() }
    }

    /// Returns the carrier.
    pub fn get_ref(&self) -> &T {
        &self.carrier
    }
}

impl<T: AsyncRead + Unpin> SnappyStream<T> {
    /// Waits for data and returns its first byte without taking it; `None` at the end.
    ///
    /// # Errors
    ///
    /// Same as reading.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub async fn peek_byte(&mut self) -> io::Result<Option<u8>> {
        let data = std::future::poll_fn(|cx| {
            ready!(self.input.poll_fill(Pin::new(&mut self.carrier), cx))?;
            Poll::Ready(io::Result::Ok(self.input.data().first().copied()))
        });
        data.await
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SnappyStream<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        ready!(this.input.poll_fill(Pin::new(&mut this.carrier), cx))?;
        let data = this.input.data();
        let len = data.len().min(buf.remaining());
        buf.put_slice(&data[..len]);
        this.input.consume(len);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SnappyStream<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.output.poll_send(Pin::new(&mut this.carrier), cx))?;
        if this.output.is_full() {
            ready!(this.output.poll_drain(Pin::new(&mut this.carrier), cx))?;
        }
        let mut written = 0;
        for buf in bufs {
            written += this.output.collect(buf);
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.output.poll_drain(Pin::new(&mut this.carrier), cx))?;
        Pin::new(&mut this.carrier).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.output.poll_drain(Pin::new(&mut this.carrier), cx))?;
        Pin::new(&mut this.carrier).poll_shutdown(cx)
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for SnappyStream<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnappyStream").field("carrier", &self.carrier).finish_non_exhaustive()
    }
}

/// The reading direction: complete chunks from the carrier, and the data of the last one.
#[derive(Default)]
struct Input {
    /// Bytes from the carrier; `raw_start..raw_end` are not decoded yet.
    raw: Vec<u8>,
    raw_start: usize,
    raw_end: usize,
    /// Bytes of a skippable chunk still to come.
    skip: usize,
    /// The first stream identifier has arrived.
    started: bool,
    /// Data of the last chunk; bytes before `consumed` were read.
    data: Vec<u8>,
    consumed: usize,
    decoder: Decoder,
}

impl Input {
    fn data(&self) -> &[u8] {
        &self.data[self.consumed..]
    }

    fn consume(&mut self, len: usize) {
        self.consumed += len;
    }

    /// Ready if there is data, or the carrier has ended.
    fn poll_fill<T: AsyncRead>(
        &mut self,
        mut carrier: Pin<&mut T>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.data().is_empty() {
            if self.decode_chunk()? {
                continue;
            }
            if self.raw.is_empty() {
                self.raw.resize(INPUT_LEN, 0);
            }
            if self.raw_start > 0 {
                self.raw.copy_within(self.raw_start..self.raw_end, 0);
                (self.raw_start, self.raw_end) = (0, self.raw_end - self.raw_start);
            }
            let mut buf = ReadBuf::new(&mut self.raw[self.raw_end..]);
            ready!(carrier.as_mut().poll_read(cx, &mut buf))?;
            let len = buf.filled().len();
            if len == 0 {
                let whole = self.raw_end == 0 && self.skip == 0;
                return Poll::Ready(if whole {
                    Ok(())
                } else {
                    Err(io::Error::new(
                        io::ErrorKind::UnexpectedEof,
                        "snappy: the stream ends inside a chunk",
                    ))
                });
            }
            self.raw_end += len;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes one chunk; returns false if it is incomplete.
    fn decode_chunk(&mut self) -> Result<bool, SnappyError> {
        let raw = &self.raw[self.raw_start..self.raw_end];
        if self.skip > 0 {
            let len = self.skip.min(raw.len());
            self.skip -= len;
            self.raw_start += len;
            return Ok(len > 0);
        }
        let Some((header, rest)) = raw.split_first_chunk::<HEADER_LEN>() else { return Ok(false) };
        let len = match Header::parse(*header, self.started)? {
            Header::Skip(len) => {
                self.skip = len;
                0
            }
            Header::Identifier(len) => {
                let Some(body) = rest.get(..len) else { return Ok(false) };
                chunk::check_identifier(body)?;
                self.started = true;
                len
            }
            Header::Data { compressed, len } => {
                let Some(body) = rest.get(..len) else { return Ok(false) };
                self.consumed = 0;
                chunk::decode(&mut self.decoder, compressed, body, &mut self.data)?;
                len
            }
        };
        self.raw_start += HEADER_LEN + len;
        Ok(true)
    }
}

// An incomplete chunk fits into the buffer.
const _: () = assert!(INPUT_LEN >= HEADER_LEN + MAX_BODY);

/// The writing direction: collected data, and chunks that the carrier has not taken.
struct Output {
    /// The stream identifier is among the chunks.
    started: bool,
    /// Collected since the last chunk, at most `limit` bytes.
    collected: Vec<u8>,
    /// `WAITING_DATA` after a chunk that did not shrink and that the carrier did not take at once,
    /// until another chunk; else `MAX_DATA`.
    limit: usize,
    /// One chunk, with the stream identifier if it is the first; bytes before `sent` were taken.
    chunk: Vec<u8>,
    sent: usize,
    /// The carrier has blocked on the chunk.
    has_waited: bool,
    /// The last chunk is shorter than its data.
    shrinks: bool,
    encoder: Encoder,
}

impl Default for Output {
    fn default() -> Self {
        Self {
            started: false,
            collected: Vec::new(),
            limit: MAX_DATA,
            chunk: Vec::new(),
            sent: 0,
            has_waited: false,
            shrinks: false,
            encoder: Encoder::new(),
        }
    }
}

impl Output {
    fn is_full(&self) -> bool {
        self.collected.len() >= self.limit
    }

    /// Takes the part of `buf` that fits into a chunk. Returns the number of bytes.
    fn collect(&mut self, buf: &[u8]) -> usize {
        let len = buf.len().min(self.limit.saturating_sub(self.collected.len()));
        self.collected.extend_from_slice(&buf[..len]);
        len
    }

    /// Passes all collected bytes to the carrier.
    fn poll_drain<T: AsyncWrite>(
        &mut self,
        mut carrier: Pin<&mut T>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_send(carrier.as_mut(), cx))?;
            if self.collected.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !self.started {
                self.started = true;
                self.chunk.extend_from_slice(STREAM_IDENTIFIER);
            }
            chunk::encode(&mut self.encoder, &self.collected, &mut self.chunk);
            self.shrinks = self.chunk.len() < self.collected.len();
            self.collected.clear();
        }
    }

    /// Passes the chunk to the carrier.
    fn poll_send<T: AsyncWrite>(
        &mut self,
        mut carrier: Pin<&mut T>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.chunk.is_empty() {
            return Poll::Ready(Ok(()));
        }
        while self.sent < self.chunk.len() {
            let rest = &self.chunk[self.sent..];
            let Poll::Ready(written) = carrier.as_mut().poll_write(cx, rest) else {
                self.has_waited = true;
                return Poll::Pending;
            };
            let len = written?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += len;
        }
        let has_waited = mem::take(&mut self.has_waited);
        self.limit = if has_waited && !self.shrinks { WAITING_DATA } else { MAX_DATA };
        self.chunk.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}
