//! The CONTROL capability, seen by other implementations: the same connection runs with and without
//! it, and but for a field that they do not read every datagram of both sides is the same.

use anyhow::{Context as _, ensure};
use kcpx::proto::segment::{CONTROL_CAPABLE, Command, Header, Segments};
use kcpx::{Config, KeepaliveInterval};
use kcpx_interop::implementation::Implementation;
use kcpx_interop::link::{Path, Rng};
use kcpx_interop::ours::Ours;
use kcpx_interop::pair::{CONV, Pair};
use kcpx_interop::peer::Settings;
use kcpx_interop::transfer::each;
use kcpx_interop::work;

/// Everything both sides send in a connection that we end, with or without FIN and RST.
fn captured(
    implementation: Implementation,
    loss: u8,
    seed: u64,
    notify: bool,
) -> anyhow::Result<[Vec<Vec<u8>>; 2]> {
    let mut rng = Rng::new(seed);
    let path = if loss == 0 { Path::CLEAN } else { Path::lossy(loss) };
    let settings = Settings { eager: seed.is_multiple_of(2), ..Settings::default() };
    let second = std::time::Duration::from_secs(1);
    let adjust =
        |config: Config| config.close_notify(notify).keepalive(KeepaliveInterval::After(second));
    let ours = Ours::new(CONV, &settings, &mut rng, adjust)?;
    let theirs = implementation.build(CONV, &settings, &mut rng)?;
    let mut pair = Pair::of(ours, theirs, path, &mut rng);
    let writes = work::stream(&mut rng, 30_000);
    pair.we_write(&writes);
    pair.they_write(&writes);
    let all = (30_000, 30_000);
    pair.run_until(90_000, |pair| pair.is_settled() && pair.bytes_read() == all)?;
    pair.ours.close(pair.now);
    pair.run_for(5_000)?;
    // The other side goes on, and its data is delivered.
    pair.they_write(&writes);
    pair.run_until(180_000, |pair| pair.is_settled() && pair.bytes_read().0 == 60_000)?;
    ensure!(pair.ours.kcp().is_closed(), "a FIN is awaited");
    ensure!(!pair.ours.abort(pair.now), "a RST is sent");
    Ok(pair.captured)
}

/// The datagram with 0 where others write 0. Counts the capability flags.
fn stripped(datagram: &[u8], flags: &mut usize) -> Vec<u8> {
    let mut out = Vec::new();
    for (header, payload) in Segments::new(datagram) {
        assert_ne!(header.command, Command::Control);
        // The only PUSH with the capability is the ping, which every receiver drops as a duplicate.
        let free = header.command != Command::Push || payload.is_empty();
        assert!(header.frg == 0 || (free && header.frg == CONTROL_CAPABLE), "{header:?}");
        *flags += usize::from(header.frg == CONTROL_CAPABLE);
        Header { frg: 0, ..header }.emit(&mut out);
        out.extend_from_slice(payload);
    }
    assert_eq!(out.len(), datagram.len());
    out
}

fn compare(implementation: Implementation, loss: u8, seed: u64) -> anyhow::Result<()> {
    let with = captured(implementation, loss, seed, true).context("with flags")?;
    let without = captured(implementation, loss, seed, false).context("without flags")?;
    ensure!(with[1] == without[1], "they answer otherwise");
    let mut flags = 0;
    let ours: Vec<_> = with[0].iter().map(|datagram| stripped(datagram, &mut flags)).collect();
    ensure!(ours == without[0], "we send otherwise");
    ensure!(flags > 3, "hardly a segment has the capability: {flags}");
    println!(
        "  {implementation:?} {loss} %: {} and {} datagrams, {flags} flags",
        ours.len(),
        with[1].len()
    );
    Ok(())
}

#[test]
fn control_capability_is_invisible_to_other_implementations() {
    each("control_capability_is_invisible_to_other_implementations", 0..120, |seed| {
        let implementation =
            [Implementation::C, Implementation::Rust][usize::try_from(seed % 2).unwrap()];
        let loss = [0, 5, 20][usize::try_from(seed / 2 % 3).unwrap()];
        compare(implementation, loss, seed)
    });
}
