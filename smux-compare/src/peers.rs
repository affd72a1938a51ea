//! The multiplexers: each opens streams, sends on all of them at once, and receives to the end.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

use crate::carrier::Carrier;

/// Bytes of a write, and of the buffer of a read.
const PIECE: usize = 64 << 10;

/// The data of all streams: one buffer, as in the program in Go.
static DATA: [u8; PIECE] = [7; PIECE];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The carrier alone.
    Raw,
    SmuxV1,
    SmuxV2,
    /// With `write_chunk`, which does not copy.
    ChunksV1,
    ChunksV2,
    SmuxRust,
    AsyncSmux,
    Yamux,
    H2,
}

impl Peer {
    pub(crate) const ALL: [Self; 9] = [
        Self::Raw,
        Self::SmuxV1,
        Self::SmuxV2,
        Self::ChunksV1,
        Self::ChunksV2,
        Self::SmuxRust,
        Self::AsyncSmux,
        Self::Yamux,
        Self::H2,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::SmuxV1 => "kcpx-smux v1",
            Self::SmuxV2 => "kcpx-smux v2",
            Self::ChunksV1 => "kcpx-smux chunks v1",
            Self::ChunksV2 => "kcpx-smux chunks v2",
            Self::SmuxRust => "smux_rust 0.2 (v2)",
            Self::AsyncSmux => "async_smux 0.4 (v1)",
            Self::Yamux => "yamux 0.14",
            Self::H2 => "h2 0.4",
        }
    }

    /// Sends `len` bytes on each of `streams` streams, from `client` to `server`.
    pub(crate) async fn run<T: Carrier>(
        self,
        client: T,
        server: T,
        streams: usize,
        len: usize,
    ) -> Result<()> {
        let mut tasks = JoinSet::new();
        match self {
            Self::Raw => {
                tasks.spawn(send(client, len));
                tasks.spawn(receive(server, len));
            }
            Self::SmuxV1 | Self::SmuxV2 | Self::ChunksV1 | Self::ChunksV2 => {
                self.smux(client, server, streams, len, &mut tasks).await?;
            }
            Self::SmuxRust => smux_rust(client, server, streams, len, &mut tasks).await?,
            Self::AsyncSmux => async_smux(client, server, streams, len, &mut tasks)?,
            Self::Yamux => yamux(client, server, streams, len, &mut tasks).await?,
            Self::H2 => h2(client, server, streams, len, &mut tasks).await?,
        }
        all(tasks).await
    }
}

impl Peer {
    async fn smux<T: Carrier>(
        self,
        client: T,
        server: T,
        streams: usize,
        len: usize,
        tasks: &mut JoinSet<Result<()>>,
    ) -> Result<()> {
        use kcpx_smux::{Config, Session, Version};
        let is_v1 = matches!(self, Self::SmuxV1 | Self::ChunksV1);
        let version = if is_v1 { Version::V1 } else { Version::V2 };
        // kcptun's window.
        let config = Config::new().version(version).max_stream_buffer(2 << 20);
        let client = Session::client(client, config.clone())?;
        let server = Session::server(server, config)?;
        for _ in 0..streams {
            let stream = client.open_stream().await?;
            if matches!(self, Self::ChunksV1 | Self::ChunksV2) {
                tasks.spawn(send_chunks(stream, len));
            } else {
                tasks.spawn(send(stream, len));
            }
            tasks.spawn(receive(server.accept_stream().await?, len));
        }
        Ok(())
    }
}

async fn send(mut stream: impl AsyncWrite + Unpin, len: usize) -> Result<()> {
    let mut left = len;
    while left > 0 {
        let piece = left.min(PIECE);
        stream.write_all(&DATA[..piece]).await?;
        left -= piece;
    }
    // The receiver has all it wants by then, and may be gone.
    drop(stream.shutdown().await);
    Ok(())
}

async fn receive(mut stream: impl AsyncRead + Unpin, len: usize) -> Result<()> {
    let (mut buffer, mut received) = (vec![0; PIECE], 0);
    while received < len {
        let read = stream.read(&mut buffer).await?;
        ensure!(read > 0, "the stream ended after {received} of {len} bytes");
        received += read;
    }
    Ok(())
}

async fn send_chunks(mut stream: kcpx_smux::Stream, len: usize) -> Result<()> {
    let mut left = len;
    while left > 0 {
        let piece = left.min(PIECE);
        let mut chunk = Bytes::from_static(&DATA[..piece]);
        stream.write_chunk(&mut chunk).await?;
        left -= piece;
    }
    drop(stream.shutdown().await);
    Ok(())
}

async fn smux_rust<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    let config = || {
        let default = smux_rust::Config::default();
        Some(smux_rust::Config { version: 2, max_stream_buffer: 2 << 20, ..default })
    };
    let client = smux_rust::client(Box::new(client), config()).await?;
    let server = smux_rust::server(Box::new(server), config()).await?;
    for _ in 0..streams {
        let stream = client.open_stream().await?;
        let session = Arc::clone(&client);
        tasks.spawn(async move {
            let mut left = len;
            while left > 0 {
                let piece = left.min(PIECE);
                stream.write_all(&DATA[..piece]).await?;
                left -= piece;
            }
            drop(session);
            // Closing would end the other direction too.
            std::mem::forget(stream);
            Ok(())
        });
        let stream = server.accept_stream().await?;
        tasks.spawn(async move {
            let (mut buffer, mut received) = (vec![0; PIECE], 0);
            while received < len {
                let read = stream.read(&mut buffer).await?;
                ensure!(read > 0, "the stream ended after {received} of {len} bytes");
                received += read;
            }
            std::mem::forget(stream);
            Ok(())
        });
    }
    Ok(())
}

fn async_smux<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    use async_smux::MuxBuilder;
    let (connector, acceptor, worker) = MuxBuilder::client().with_connection(client).build();
    drop(acceptor);
    tokio::spawn(worker);
    let (_, mut acceptor, worker) = MuxBuilder::server().with_connection(server).build();
    tokio::spawn(worker);
    for _ in 0..streams {
        tasks.spawn(send(connector.connect()?, len));
    }
    tasks.spawn(async move {
        let mut receivers = JoinSet::new();
        for _ in 0..streams {
            let stream = acceptor.accept().await.context("the session has ended")?;
            receivers.spawn(receive(stream, len));
        }
        all(receivers).await
    });
    Ok(())
}

async fn yamux<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    use yamux::{Config, Connection, Mode};
    let mut client = Connection::new(client.compat(), Config::default(), Mode::Client);
    let mut server = Connection::new(server.compat(), Config::default(), Mode::Server);
    for _ in 0..streams {
        let opened = std::future::poll_fn(|cx| client.poll_new_outbound(cx)).await;
        tasks.spawn(send(opened?.compat(), len));
    }
    // A connection advances while it is polled for incoming streams.
    tokio::spawn(async move {
        while let Some(Ok(_)) = std::future::poll_fn(|cx| client.poll_next_inbound(cx)).await {}
    });
    let (accepted, mut incoming) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(stream)) = std::future::poll_fn(|cx| server.poll_next_inbound(cx)).await {
            let _ = accepted.send(stream);
        }
    });
    tasks.spawn(async move {
        let mut receivers = JoinSet::new();
        for _ in 0..streams {
            let stream = incoming.recv().await.context("the session has ended")?;
            receivers.spawn(receive(stream.compat(), len));
        }
        all(receivers).await
    });
    Ok(())
}

async fn h2<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<Result<()>>,
) -> Result<()> {
    // The same window and frame size as above; the defaults are 64 KiB and 16 KiB.
    let (window, connection_window) = (2 << 20, 4 << 20);
    let (request, connection) = {
        let mut builder = h2::client::Builder::new();
        builder.max_frame_size(32_768).initial_max_send_streams(streams);
        tokio::join!(builder.handshake::<_, Bytes>(client), async {
            let mut builder = h2::server::Builder::new();
            builder.initial_window_size(window).initial_connection_window_size(connection_window);
            builder.max_frame_size(32_768);
            builder.handshake::<_, Bytes>(server).await
        })
    };
    let ((mut client, driver), connection) = (request?, connection?);
    tokio::spawn(driver);
    tasks.spawn(h2_server(connection, streams, len));
    for _ in 0..streams {
        client = client.ready().await?;
        let request = http::Request::post("http://localhost/").body(())?;
        let (response, body) = client.send_request(request, false)?;
        tasks.spawn(async move {
            h2_send(body, len).await?;
            // Dropped before, it would reset the stream.
            drop(response.await);
            Ok(())
        });
    }
    let keep = client;
    tasks.spawn(async move {
        drop(keep);
        Ok(())
    });
    Ok(())
}

async fn h2_send(mut body: h2::SendStream<Bytes>, len: usize) -> Result<()> {
    // Lent without a copy, which is what this library offers.
    let data = Bytes::from_static(&DATA);
    let mut left = len;
    while left > 0 {
        body.reserve_capacity(left.min(PIECE));
        let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
        let piece = capacity.context("the stream has ended")??.min(left);
        let piece = piece.min(PIECE);
        left -= piece;
        body.send_data(data.slice(..piece), left == 0)?;
    }
    Ok(())
}

async fn h2_server<T: Carrier>(
    mut connection: h2::server::Connection<T, Bytes>,
    streams: usize,
    len: usize,
) -> Result<()> {
    let (done, mut finished) = tokio::sync::mpsc::channel::<()>(1);
    let mut receivers = JoinSet::new();
    for _ in 0..streams {
        let accepted = connection.accept().await.context("the session has ended")?;
        let (request, mut respond) = accepted?;
        let done = done.clone();
        receivers.spawn(async move {
            let (mut body, mut received) = (request.into_body(), 0);
            while let Some(data) = body.data().await {
                let data = data?;
                received += data.len();
                body.flow_control().release_capacity(data.len())?;
            }
            ensure!(received == len, "the stream ended after {received} of {len} bytes");
            let _ = respond.send_response(http::Response::new(()), true);
            drop(done);
            Ok(())
        });
    }
    drop(done);
    tokio::select! {
        _ = connection.accept() => {}
        _ = finished.recv() => {}
    }
    all(receivers).await
}

/// Waits for all of them; the first that fails ends it.
async fn all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(())
}
