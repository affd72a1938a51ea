//! What this crate adds to the wire, seen by other makes: the same conversation is run with and
//! without it, and but for fields that they do not read every datagram of both sides is the same.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use anyhow::{Context as _, ensure};
use kcpx::KcpConfig;
use kcpx::proto::segment::{CONTROL_CAPABLE, Command, Header, Segments};
use kcpx_interop::link::{Path, Rng};
use kcpx_interop::pair::{CONV, Pair};
use kcpx_interop::peer::{Make, Ours, Settings};
use kcpx_interop::transfer::each;
use kcpx_interop::work;

/// Everything both sides send in a conversation that we end, with or without telling.
fn captured(make: Make, loss: u8, seed: u64, notify: bool) -> anyhow::Result<[Vec<Vec<u8>>; 2]> {
    let mut rng = Rng::new(seed);
    let path = if loss == 0 { Path::CLEAN } else { Path::lossy(loss) };
    let settings = Settings { eager: seed.is_multiple_of(2), ..Settings::default() };
    let adjust = |config: &mut KcpConfig| {
        config.close_notify = notify;
        config.keepalive = Some(std::time::Duration::from_secs(1));
    };
    let ours = Ours::new(CONV, &settings, &mut rng, adjust)?;
    let theirs = make.build(CONV, &settings, &mut rng)?;
    let mut pair = Pair::of(ours, theirs, path, &mut rng);
    let writes = work::stream(&mut rng, 30_000);
    pair.we_write(&writes);
    pair.they_write(&writes);
    let all = (30_000, 30_000);
    pair.run_until(90_000, |pair| pair.is_settled() && pair.bytes_read() == all)?;
    pair.ours.close(pair.now);
    pair.run_for(5_000)?;
    // They go on, and are heard.
    pair.they_write(&writes);
    pair.run_until(180_000, |pair| pair.is_settled() && pair.bytes_read().0 == 60_000)?;
    ensure!(pair.ours.kcp().is_closed(), "there is nobody to wait for");
    ensure!(!pair.ours.abort(pair.now), "there is nobody to tell");
    Ok(pair.captured)
}

/// The datagram with 0 where others write 0. Counts the marks.
fn stripped(datagram: &[u8], marks: &mut usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (header, payload) in Segments::new(datagram) {
        assert_ne!(header.command, Command::Control);
        // The only marked PUSH is the echo probe, which every receiver drops as a repetition.
        let free = header.command != Command::Push || payload.is_empty();
        assert!(header.frg == 0 || (free && header.frg == CONTROL_CAPABLE), "{header:?}");
        *marks += usize::from(header.frg == CONTROL_CAPABLE);
        Header { frg: 0, ..header }.emit(&mut out);
        out.extend_from_slice(payload);
    }
    assert_eq!(out.len(), datagram.len());
    out
}

fn compare(make: Make, loss: u8, seed: u64) -> anyhow::Result<()> {
    let told = captured(make, loss, seed, true).context("with marks")?;
    let untold = captured(make, loss, seed, false).context("without marks")?;
    ensure!(told[1] == untold[1], "they answer otherwise");
    let mut marks = 0;
    let ours: Vec<_> = told[0].iter().map(|datagram| stripped(datagram, &mut marks)).collect();
    ensure!(ours == untold[0], "we send otherwise");
    ensure!(marks > 3, "hardly anything was marked: {marks}");
    println!("  {make:?} {loss} %: {} and {} datagrams, {marks} marks", ours.len(), told[1].len());
    Ok(())
}

#[test]
fn stock_cores_see_no_difference() {
    each("stock_cores_see_no_difference", 0..120, |seed| {
        let make = [Make::C, Make::Rust][usize::try_from(seed % 2).unwrap()];
        let loss = [0, 5, 20][usize::try_from(seed / 2 % 3).unwrap()];
        compare(make, loss, seed)
    });
}
