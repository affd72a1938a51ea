//! Automatic redundancy, seen by implementations without FEC: they are sent, and they answer, what
//! they are without it, and accept all of it.

use anyhow::ensure;
use kcpx::proto::segment::{Command, Segments};
use kcpx::{AutoRedundancy, Config, Redundancy};
use kcpx_interop::implementation::Implementation;
use kcpx_interop::link::{Path, Rng};
use kcpx_interop::ours::Ours;
use kcpx_interop::pair::{CONV, Pair};
use kcpx_interop::peer::Settings;
use kcpx_interop::transfer::each;

/// Everything both sides send while we write a message each 10 ms. The peer panics at a datagram
/// that it does not accept.
fn captured(
    implementation: Implementation,
    (loss, seed): (u8, u64),
    auto: bool,
) -> anyhow::Result<[Vec<Vec<u8>>; 2]> {
    let mut rng = Rng::new(seed);
    let path = if loss == 0 { Path::CLEAN } else { Path::lossy(loss) };
    let settings = Settings { eager: true, ..Settings::default() };
    let redundancy = if auto { Redundancy::Auto(AutoRedundancy::new()) } else { Redundancy::Off };
    let adjust = |config: Config| config.redundancy(redundancy);
    let ours = Ours::new(CONV, &settings, &mut rng, adjust)?;
    let theirs = implementation.build(CONV, &settings, &mut rng)?;
    let mut pair = Pair::of(ours, theirs, path, &mut rng);
    let messages = 300;
    for i in 0..messages {
        pair.we_write(&[vec![i as u8; 1_024]]);
        pair.run_for(10)?;
    }
    let all = (0, messages * 1_024);
    pair.run_until(90_000, |pair| pair.is_settled() && pair.bytes_read() == all)?;
    Ok(pair.captured)
}

fn compare(implementation: Implementation, loss: u8, seed: u64) -> anyhow::Result<()> {
    let with = captured(implementation, (loss, seed), true)?;
    let without = captured(implementation, (loss, seed), false)?;
    ensure!(with[0] == without[0], "we send otherwise");
    ensure!(with[1] == without[1], "they answer otherwise");
    let count = |datagrams: &[Vec<u8>], command| {
        let segments = datagrams.iter().flat_map(|datagram| Segments::new(datagram));
        segments.filter(|(header, _)| header.command == command).count()
    };
    let (sent, acks) = (count(&with[0], Command::Push), count(&with[1], Command::Ack));
    let others: usize = [Command::Push, Command::WindowProbe, Command::WindowUpdate]
        .into_iter()
        .map(|command| count(&with[1], command))
        .sum();
    ensure!(acks <= sent && others == 0, "{acks} ACKs of {sent} segments, {others} others");
    println!("  {implementation:?} {loss} %: {sent} segments, {acks} ACKs");
    Ok(())
}

#[test]
fn automatic_redundancy_is_invisible_to_peers_without_fec() {
    each("automatic_redundancy_is_invisible_to_peers_without_fec", 0..40, |seed| {
        let implementation =
            [Implementation::C, Implementation::Rust][usize::try_from(seed % 2).unwrap()];
        let loss = [0, 5, 10, 20][usize::try_from(seed / 2 % 4).unwrap()];
        compare(implementation, loss, seed)
    });
}
