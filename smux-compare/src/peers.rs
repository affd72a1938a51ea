//! The multiplexers: each opens streams, sends on all of them at once, and receives to the end.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio_util::compat::{FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

use crate::carrier::Carrier;

/// Bytes of a write, and of the buffer of a read.
const PIECE: usize = 64 << 10;

/// What all streams send: one buffer, as in the program in Go.
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
    pub(crate) async fn run<T: Carrier>(self, client: T, server: T, streams: usize, len: usize) {
        let mut tasks = JoinSet::new();
        match self {
            Self::Raw => {
                tasks.spawn(send(client, len));
                tasks.spawn(receive(server, len));
            }
            Self::SmuxV1 | Self::SmuxV2 | Self::ChunksV1 | Self::ChunksV2 => {
                self.smux(client, server, streams, len, &mut tasks).await;
            }
            Self::SmuxRust => smux_rust(client, server, streams, len, &mut tasks).await,
            Self::AsyncSmux => async_smux(client, server, streams, len, &mut tasks),
            Self::Yamux => yamux(client, server, streams, len, &mut tasks).await,
            Self::H2 => h2(client, server, streams, len, &mut tasks).await,
        }
        while let Some(task) = tasks.join_next().await {
            task.expect("a transfer failed");
        }
    }
}

impl Peer {
    async fn smux<T: Carrier>(
        self,
        client: T,
        server: T,
        streams: usize,
        len: usize,
        tasks: &mut JoinSet<()>,
    ) {
        use kcpx_smux::{Config, Session, Version};
        let is_v1 = matches!(self, Self::SmuxV1 | Self::ChunksV1);
        let version = if is_v1 { Version::V1 } else { Version::V2 };
        // kcptun's window.
        let config = Config::new().version(version).max_stream_buffer(2 << 20);
        let client = Session::client(client, config.clone()).expect("the settings are allowed");
        let server = Session::server(server, config).expect("the settings are allowed");
        for _ in 0..streams {
            let stream = client.open_stream().await.expect("the session lives");
            if matches!(self, Self::ChunksV1 | Self::ChunksV2) {
                tasks.spawn(send_chunks(stream, len));
            } else {
                tasks.spawn(send(stream, len));
            }
            tasks.spawn(receive(server.accept_stream().await.expect("the session lives"), len));
        }
    }
}

async fn send(mut stream: impl AsyncWrite + Unpin, len: usize) {
    let mut left = len;
    while left > 0 {
        let piece = left.min(PIECE);
        stream.write_all(&DATA[..piece]).await.expect("the stream lives");
        left -= piece;
    }
    // The receiver has all it wants by then, and may be gone.
    drop(stream.shutdown().await);
}

async fn receive(mut stream: impl AsyncRead + Unpin, len: usize) {
    let (mut buffer, mut received) = (vec![0; PIECE], 0);
    while received < len {
        let read = stream.read(&mut buffer).await.expect("the stream lives");
        assert!(read > 0, "{received} of {len} bytes");
        received += read;
    }
}

async fn send_chunks(mut stream: kcpx_smux::Stream, len: usize) {
    let mut left = len;
    while left > 0 {
        let piece = left.min(PIECE);
        let mut chunk = Bytes::from_static(&DATA[..piece]);
        stream.write_chunk(&mut chunk).await.expect("the stream lives");
        left -= piece;
    }
    drop(stream.shutdown().await);
}

async fn smux_rust<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<()>,
) {
    let config = || {
        let default = smux_rust::Config::default();
        Some(smux_rust::Config { version: 2, max_stream_buffer: 2 << 20, ..default })
    };
    let client = smux_rust::client(Box::new(client), config()).await.expect("a session");
    let server = smux_rust::server(Box::new(server), config()).await.expect("a session");
    for _ in 0..streams {
        let stream = client.open_stream().await.expect("the session lives");
        let session = Arc::clone(&client);
        tasks.spawn(async move {
            let mut left = len;
            while left > 0 {
                let piece = left.min(PIECE);
                stream.write_all(&DATA[..piece]).await.expect("the stream lives");
                left -= piece;
            }
            drop(session);
            // Closing would end the other direction too.
            std::mem::forget(stream);
        });
        let stream = server.accept_stream().await.expect("the session lives");
        tasks.spawn(async move {
            let (mut buffer, mut received) = (vec![0; PIECE], 0);
            while received < len {
                let read = stream.read(&mut buffer).await.expect("the stream lives");
                assert!(read > 0, "{received} of {len} bytes");
                received += read;
            }
            std::mem::forget(stream);
        });
    }
}

fn async_smux<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<()>,
) {
    use async_smux::MuxBuilder;
    let (connector, acceptor, worker) = MuxBuilder::client().with_connection(client).build();
    drop(acceptor);
    tokio::spawn(worker);
    let (_, mut acceptor, worker) = MuxBuilder::server().with_connection(server).build();
    tokio::spawn(worker);
    for _ in 0..streams {
        tasks.spawn(send(connector.connect().expect("the session lives"), len));
    }
    tasks.spawn(async move {
        let mut receivers = JoinSet::new();
        for _ in 0..streams {
            let stream = acceptor.accept().await.expect("the session lives");
            receivers.spawn(receive(stream, len));
        }
        receivers.join_all().await;
    });
}

async fn yamux<T: Carrier>(
    client: T,
    server: T,
    streams: usize,
    len: usize,
    tasks: &mut JoinSet<()>,
) {
    use yamux::{Config, Connection, Mode};
    let mut client = Connection::new(client.compat(), Config::default(), Mode::Client);
    let mut server = Connection::new(server.compat(), Config::default(), Mode::Server);
    for _ in 0..streams {
        let opened = std::future::poll_fn(|cx| client.poll_new_outbound(cx)).await;
        tasks.spawn(send(opened.expect("the session lives").compat(), len));
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
            let stream = incoming.recv().await.expect("the session lives");
            receivers.spawn(receive(stream.compat(), len));
        }
        receivers.join_all().await;
    });
}

async fn h2<T: Carrier>(client: T, server: T, streams: usize, len: usize, tasks: &mut JoinSet<()>) {
    // The same window and frame size as above; the defaults are 64 KiB and 16 KiB.
    let (window, connection_window) = (2 << 20, 4 << 20);
    let (request, connection) = {
        let mut builder = h2::client::Builder::new();
        builder.max_frame_size(32_768).initial_max_send_streams(streams);
        tokio::join!(builder.handshake::<_, Bytes>(client), async {
            let mut builder = h2::server::Builder::new();
            builder.initial_window_size(window).initial_connection_window_size(connection_window);
            builder.max_frame_size(32_768);
            builder.handshake::<_, Bytes>(server).await.expect("a session")
        })
    };
    let (mut client, driver) = request.expect("a session");
    tokio::spawn(driver);
    tasks.spawn(h2_server(connection, streams, len));
    for _ in 0..streams {
        client = client.ready().await.expect("the session lives");
        let request = http::Request::post("http://localhost/").body(()).expect("it is valid");
        let (response, body) = client.send_request(request, false).expect("the session lives");
        tasks.spawn(async move {
            h2_send(body, len).await;
            // Dropped before, it would reset the stream.
            drop(response.await);
        });
    }
    let keep = client;
    tasks.spawn(async move { drop(keep) });
}

async fn h2_send(mut body: h2::SendStream<Bytes>, len: usize) {
    // Lent without a copy, which is what this library offers.
    let data = Bytes::from_static(&DATA);
    let mut left = len;
    while left > 0 {
        body.reserve_capacity(left.min(PIECE));
        let capacity = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
        let piece = capacity.expect("the stream lives").expect("the stream lives").min(left);
        let piece = piece.min(PIECE);
        left -= piece;
        body.send_data(data.slice(..piece), left == 0).expect("the stream lives");
    }
}

async fn h2_server<T: Carrier>(
    mut connection: h2::server::Connection<T, Bytes>,
    streams: usize,
    len: usize,
) {
    let (done, mut finished) = tokio::sync::mpsc::channel::<()>(1);
    let mut receivers = JoinSet::new();
    for _ in 0..streams {
        let accepted = connection.accept().await.expect("the session lives");
        let (request, mut respond) = accepted.expect("the session lives");
        let done = done.clone();
        receivers.spawn(async move {
            let (mut body, mut received) = (request.into_body(), 0);
            while let Some(data) = body.data().await {
                let data = data.expect("the stream lives");
                received += data.len();
                body.flow_control().release_capacity(data.len()).expect("it was received");
            }
            assert_eq!(received, len);
            let _ = respond.send_response(http::Response::new(()), true);
            drop(done);
        });
    }
    drop(done);
    tokio::select! {
        _ = connection.accept() => {}
        _ = finished.recv() => {}
    }
    receivers.join_all().await;
}
