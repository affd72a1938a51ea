//! How much a writer may have unsent.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{Pair, SECOND, pattern};
use crate::testkit::link::LinkConfig;

/// What a bulk writer has unsent leaves soon, at the rate of the path, and each wake finds a part worth
/// writing.
#[test]
fn bulk_writer_has_little_unsent_and_fills_the_path() {
    for (mbit, most) in [(10, 24 << 10), (100, 180 << 10)] {
        let Pair { mut world, client, mut server, endpoint: _endpoint, listener: _listener } =
            Pair::plain();
        let rate = mbit * 125_000;
        let path = LinkConfig { rate: Some(rate), queue: 200 * 1_428, ..LinkConfig::delay(20_000) };
        world.set_path(path);
        let (reader, mut writer) = client.into_split();
        let (writes, read) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (count, total) = (writes.clone(), read.clone());
        world.spawn(async move {
            let block = pattern(1 << 16);
            while writer.write(&block).await.is_ok() {
                count.set(count.get() + 1);
            }
        });
        world.spawn(async move {
            let mut buf = vec![0; 1 << 16];
            while let Ok(len @ 1..) = server.read(&mut buf).await {
                total.set(total.get() + len as u64);
            }
        });
        world.run_for(3 * SECOND);
        let before = (writes.get(), read.get());
        let mut largest = 0;
        for _ in 0..300 {
            world.run_for(Duration::from_millis(10));
            largest = largest.max(reader.stats().unsent_bytes);
        }
        let (writes, read) = (writes.get() - before.0, read.get() - before.1);
        println!("{mbit} Mbit/s: {read} bytes in {writes} writes, at most {largest} unsent");
        assert!(largest <= most, "{largest} bytes");
        assert!(read as f64 > 0.95 * 0.96 * 3.0 * rate as f64, "{read} bytes");
        assert!(read / writes >= most / 8, "{read} bytes in {writes} writes");
    }
}
