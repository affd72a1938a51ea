//! A listener in a thread of its own.

use std::net::SocketAddr;
use std::thread::JoinHandle;

use anyhow::Context;
use kcpx::{Config, Endpoint, EndpointStats, KcpListener, KcpStream};
use tokio::io::AsyncWriteExt;
use tokio::sync::oneshot;

/// What is done with an accepted connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Service {
    /// Sends back what comes.
    Echo,
    /// Sends this many bytes before it reads anything, and then drops what comes.
    Greeting(usize),
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    endpoint: Endpoint,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(config: Config, service: Service) -> anyhow::Result<Self> {
        let (report, bound) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let listener = KcpListener::bind_with("127.0.0.1:0", config).await;
                let Ok(listener) = listener else { return };
                let Ok(addr) = listener.local_addr() else { return };
                let endpoint = listener.endpoint().clone();
                let _ = report.send((addr, endpoint));
                tokio::select! {
                    () = accept(&listener, service) => {}
                    _ = stopped => {}
                }
            });
        });
        let (addr, endpoint) = bound.recv().context("the server did not start")?;
        Ok(Self { addr, endpoint, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn stats(&self) -> EndpointStats {
        self.endpoint.stats()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: &KcpListener, service: Service) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, service));
    }
}

/// Without a buffer of its own: what is measured is what the library keeps.
async fn serve(mut stream: KcpStream, service: Service) {
    if let Service::Greeting(len) = service
        && stream.write_all(&vec![0x5A; len]).await.is_err()
    {
        return;
    }
    while let Ok(chunk) = stream.read_chunk().await {
        let echo = matches!(service, Service::Echo);
        if chunk.is_empty() || (echo && stream.write_all(&chunk).await.is_err()) {
            break;
        }
    }
}
