//! Heap memory of idle connections, counted by the allocator.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{bytes, guarded, listener, one_thread, read, until};
use kcpx::{Config, Endpoint, KcpStream};
use tokio::io::AsyncWriteExt;

const CONNECTIONS: usize = 500;
/// Bytes for one end of an idle connection, with its share of all tables: the documented 4 KiB. Both ends are
/// in this process.
const LIMIT: usize = 4_096;

/// Counts the allocated bytes.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

#[expect(unsafe_code, reason = "an allocator cannot be made without")]
// SAFETY: each call goes to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the same contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Many connections over two sockets.
struct Many {
    ends: Vec<(KcpStream, KcpStream)>,
    before: usize,
}

impl Many {
    async fn open() -> Self {
        let config = Config::new().socket_buffers(Some(4 << 20), Some(4 << 20));
        let listener = listener(config.clone()).await;
        let addr = listener.local_addr().unwrap();
        let endpoint = Endpoint::bind_with("127.0.0.1:0", config).await.unwrap();
        let mut ends = Vec::with_capacity(CONNECTIONS + 1);
        let mut before = 0;
        for _ in 0..=CONNECTIONS {
            let mut client = endpoint.connect(addr).await.unwrap();
            client.write_all(&[7; 64]).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            ends.push((client, server));
            let (client, server) = ends.last_mut().unwrap();
            exchange(client, server, &[7; 64]).await;
            if ends.len() == 1 {
                // The first connection has allocated what sockets and drivers need.
                before = LIVE.load(Ordering::Relaxed);
            }
        }
        Self { ends, before }
    }

    fn per_end(&self) -> usize {
        LIVE.load(Ordering::Relaxed).saturating_sub(self.before) / (2 * CONNECTIONS)
    }
}

/// Waits until the connections hold at most the limit. Prints each change, for a test that hangs.
async fn until_within_limit(many: &Many) {
    let held = Cell::new(0);
    until(|| {
        let now = many.per_end();
        if held.replace(now) != now {
            println!("{now} bytes, allowed are {LIMIT}");
        }
        now <= LIMIT
    })
    .await;
}

/// Echoes `sent` through the server.
async fn exchange(client: &mut KcpStream, server: &mut KcpStream, sent: &[u8]) {
    let echo = async {
        let got = read(server, sent.len()).await;
        server.write_all(&got).await.unwrap();
    };
    let (got, ()) = tokio::join!(read(client, sent.len()), echo);
    assert!(got == sent, "another echo");
}

#[test]
fn idle_connections_stay_within_the_memory_limit() {
    one_thread().block_on(guarded(async {
        let mut many = Many::open().await;
        until_within_limit(&many).await;
        println!("{} bytes after a greeting", many.per_end());

        // Connections that moved 64 KiB shrink back to the limit.
        let data = bytes(1, 64 * 1024);
        for (client, server) in &mut many.ends {
            let (mut client_reader, mut client_writer) = client.split();
            let (mut server_reader, mut server_writer) = server.split();
            let echo = async {
                let got = read(&mut server_reader, data.len()).await;
                server_writer.write_all(&got).await.unwrap();
            };
            let (sent, got, ()) = tokio::join!(
                client_writer.write_all(&data),
                read(&mut client_reader, data.len()),
                echo
            );
            sent.unwrap();
            assert!(got == data, "another echo");
        }
        drop(data);
        let busy = many.per_end();
        until_within_limit(&many).await;
        println!("{busy} bytes after 64 KiB each way, {} after a rest", many.per_end());
    }));
}
