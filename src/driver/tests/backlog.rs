//! The limit on unsent bytes of a writer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::fixtures::{Pair, SECOND, pattern, read_pattern};
use crate::testkit::link::LinkConfig;
use crate::{Config, Mode, Timing, WritePolicy};

/// Small writes wait for 100 ms.
fn delayed() -> Config {
    Config::new()
        .write_policy(WritePolicy::Delayed)
        .timing(Timing { interval: Duration::from_millis(100), ..Timing::FAST3 })
}

/// A writer of messages has to wait before the limit is used up: it then waits for the path, not for the end
/// of the write delay.
#[test]
fn messages_that_do_not_fit_end_the_write_delay() {
    let config = delayed().mode(Mode::Message);
    let Pair { mut world, mut client, mut server, endpoint: _endpoint, listener: _listener } =
        Pair::near(&config, &config);
    world.set_path(LinkConfig {
        rate: Some(2_500_000),
        queue: 200 * 1_428,
        ..LinkConfig::delay(5_000)
    });
    let read = Rc::new(Cell::new(0));
    let total = read.clone();
    world.spawn(async move { while client.send_message(&pattern(7_000)).await.is_ok() {} });
    world.spawn(async move {
        while let Ok(message) = server.recv_message().await {
            total.set(total.get() + message.len());
        }
    });
    world.run_for(3 * SECOND);
    let before = read.get();
    world.run_for(3 * SECOND);
    let rate = (read.get() - before) / 3;
    // A batch of 16 KiB each 100 ms is 160 KB/s.
    assert!(rate > 2_000_000, "{rate} bytes a second of 2,500,000");
}

/// Its task has more to write, or will soon.
#[test]
fn writer_that_fills_the_send_buffer_ends_the_write_delay() {
    for (bytes, is_delayed) in [(3_999, true), (4_000, false), (8_000, false)] {
        let config = delayed().send_buffer(4_000);
        let Pair { mut world, mut client, mut server, .. } = Pair::near(&config, &config);
        let before = world.elapsed();
        world.finish(SECOND, async {
            client.write_all(&pattern(bytes)).await.unwrap();
            read_pattern(&mut server, bytes).await;
        });
        let millis = (world.elapsed() - before) / 1_000;
        assert_eq!(millis, if is_delayed { 100 } else { 0 }, "{bytes} bytes");
    }
}

#[test]
fn message_that_waits_for_the_window_ends_the_write_delay_of_the_one_before() {
    for (second, is_delayed) in [(12, false), (9, true)] {
        let config = delayed().mode(Mode::Message).windows(16, 16);
        let Pair { mut world, mut client, mut server, .. } = Pair::near(&config, &config);
        let before = world.elapsed();
        let first = world.finish(SECOND, async {
            for segments in [6, second] {
                client.send_message(&pattern(segments * 1_376)).await.unwrap();
            }
            server.recv_message().await.unwrap()
        });
        assert_eq!(first, pattern(6 * 1_376));
        let millis = (world.elapsed() - before) / 1_000;
        assert_eq!(millis, if is_delayed { 100 } else { 0 }, "beside {second} segments");
    }
}

/// Unsent bytes of a bulk writer leave soon, at the rate of the path, and each wake finds room worth a write.
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
