//! Ciphers over packets of 1,400 bytes: sealed in batches of 16, opened one by one.
//!
//! `sealed` and `opened` process whole packets, with nonce, checksum and copy if there is one. `bare` is the
//! encryption alone, next to other implementations of it; it needs the feature `_testkit`, and the older
//! ciphers need `legacy-ciphers`. The table at the end (alone with `-- table`) has the best of many short
//! runs next to kcp-go's bare encryption of such packets, which was measured on another machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, measurement::WallTime};
use kcpx::crypto::{Overhead, PacketCipher};
use kcpx::{Algorithm, Cipher, Key};

const PACKET: usize = 1_400;
const BATCH: usize = 16;

/// kcp-go's MB/s of encryption and decryption, by name.
const GO: [(&str, u32, u32); 10] = [
    ("aes-128", 1_103, 1_959),
    ("aes-128-gcm", 4_373, 4_798),
    ("chacha20-poly1305", 2_195, 2_020),
    ("salsa20", 1_052, 1_052),
    ("3des", 47, 47),
    ("blowfish", 171, 171),
    ("cast5", 154, 154),
    ("sm4", 141, 141),
    ("tea", 349, 349),
    ("twofish", 164, 164),
];
const GO_XTEA: (&str, u32, u32) = ("xtea", 106, 106);

fn batch() -> Vec<Vec<u8>> {
    (0..BATCH).map(|i| (0..PACKET).map(|at| (at * 31 + i) as u8).collect()).collect()
}

fn slices(packets: &mut [Vec<u8>]) -> Vec<&mut [u8]> {
    packets.iter_mut().map(Vec::as_mut_slice).collect()
}

fn cipher(algorithm: Algorithm) -> Cipher {
    let key = Key::derive("it's a secrect", Key::KCPTUN_SALT);
    Cipher::from_name(algorithm.name(), &key).expect("a derived key fits")
}

/// Nonce source: an endpoint's if accessible, otherwise a counter.
struct NonceSource {
    #[cfg(feature = "_testkit")]
    source: kcpx::fuzz::SocketNonces,
    #[cfg(not(feature = "_testkit"))]
    count: u64,
}

impl NonceSource {
    fn new() -> Self {
        Self {
            #[cfg(feature = "_testkit")]
            source: kcpx::fuzz::SocketNonces::new(&[7; 32]),
            #[cfg(not(feature = "_testkit"))]
            count: 0,
        }
    }

    #[cfg(feature = "_testkit")]
    fn fill(&mut self, len: usize, packets: &mut [&mut [u8]]) {
        self.source.fill(len, packets);
    }

    #[cfg(not(feature = "_testkit"))]
    fn fill(&mut self, len: usize, packets: &mut [&mut [u8]]) {
        for packet in packets.iter_mut().filter(|_| len > 0) {
            self.count += 1;
            packet[..8].copy_from_slice(&self.count.to_le_bytes());
        }
    }
}

/// Encryption of a batch, and decryption of one packet of it, without allocation.
struct Work {
    cipher: Cipher,
    nonces: NonceSource,
    packets: Vec<Vec<u8>>,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl Work {
    fn new(algorithm: Algorithm) -> Self {
        let cipher = cipher(algorithm);
        let mut sealed = batch().swap_remove(0);
        cipher.seal(&mut [&mut sealed]);
        let opened = sealed.clone();
        Self { cipher, nonces: NonceSource::new(), packets: batch(), sealed, opened }
    }

    fn seal(&mut self) {
        let Overhead { nonce, .. } = self.cipher.overhead();
        let mut packets = self.packets.iter_mut();
        let mut packets: [&mut [u8]; BATCH] =
            std::array::from_fn(|_| packets.next().expect("a batch").as_mut_slice());
        self.nonces.fill(nonce, &mut packets);
        self.cipher.seal(&mut packets);
        black_box(&mut packets);
    }

    fn open(&mut self) {
        self.opened.copy_from_slice(&self.sealed);
        self.cipher.open(&mut self.opened).expect("sealed by the same");
        black_box(&mut self.opened);
    }
}

/// A benchmark whose closure processes this many packets per call.
fn run(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, packets: usize, mut f: impl FnMut()) {
    group.throughput(Throughput::BytesDecimal((packets * PACKET) as u64));
    group.bench_function(name, |b| b.iter(&mut f));
}

fn packets(c: &mut Criterion) {
    let mut group = c.benchmark_group("sealed");
    for algorithm in &Algorithm::ALL[1..] {
        let mut work = Work::new(*algorithm);
        run(&mut group, algorithm.name(), BATCH, || work.seal());
    }
    group.finish();
    let mut group = c.benchmark_group("opened");
    for algorithm in &Algorithm::ALL[1..] {
        let mut work = Work::new(*algorithm);
        run(&mut group, algorithm.name(), 1, || work.open());
    }
    group.finish();
}

/// Compares batches of one, four and sixteen.
fn sizes(c: &mut Criterion) {
    let mut group = c.benchmark_group("batch");
    for algorithm in [Algorithm::Aes128, Algorithm::Aes128Gcm] {
        let cipher = cipher(algorithm);
        let mut packets = batch();
        for count in [1, 4, 8, 16] {
            let mut packets = slices(&mut packets[..count]);
            let name = format!("{algorithm} of {count}");
            run(&mut group, &name, count, || cipher.seal(black_box(&mut packets)));
        }
    }
    group.finish();
}

/// The encryption alone.
#[cfg(feature = "_testkit")]
fn bare(c: &mut Criterion) {
    use kcpx::fuzz::Bare;
    let key = Key::derive("it's a secrect", Key::KCPTUN_SALT);
    let mut group = c.benchmark_group("bare");
    for algorithm in &Algorithm::ALL[2..] {
        let name = algorithm.name();
        let Some(bare) = Bare::new(name, &key.as_bytes()[..algorithm.key_len()]) else { continue };
        let mut packets = batch();
        let mut slices = slices(&mut packets);
        run(&mut group, &format!("{name} encrypt"), BATCH, || bare.encrypt(black_box(&mut slices)));
        run(&mut group, &format!("{name} decrypt"), 1, || bare.decrypt(black_box(slices[0])));
    }
    let mut nonces = kcpx::fuzz::SocketNonces::new(&[7; 32]);
    let mut packets = batch();
    let mut slices = slices(&mut packets);
    group.throughput(Throughput::Elements(BATCH as u64));
    group.bench_function("nonces", |b| b.iter(|| nonces.fill(16, black_box(&mut slices))));
    group.throughput(Throughput::Elements(1));
    group.bench_function("own nonce", |b| b.iter(|| nonces.is_own(black_box(&slices[0][..16]))));
    group.finish();
}

#[cfg(not(feature = "_testkit"))]
fn bare(_: &mut Criterion) {}

/// Other implementations of the same ciphers.
fn oracles(c: &mut Criterion) {
    use aes_gcm::aead::{AeadInOut, KeyInit};
    let mut group = c.benchmark_group("oracle");
    let mut packet = batch().swap_remove(0);

    let gcm = aes_gcm::Aes128Gcm::new(&[7; 16].into());
    run(&mut group, "aes-gcm aes-128 encrypt", 1, || {
        let body = black_box(&mut packet[..]).into();
        black_box(gcm.encrypt_inout_detached(&[1; 12].into(), &[], body)).expect("short enough");
    });
    cfb_mode::<aes::Aes128>(&mut group, "cfb-mode aes-128", 16, &mut packet);
    cfb_mode::<aes::Aes256>(&mut group, "cfb-mode aes-256", 32, &mut packet);
    group.finish();
}

fn cfb_mode<C>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, key: usize, packet: &mut [u8])
where
    C: cipher::BlockCipherEncrypt + cipher::KeyInit,
{
    use cipher::InnerIvInit;
    let cipher = C::new_from_slice(&vec![7; key]).expect("a key that fits");
    let iv = cipher::Block::<C>::default();
    run(group, &format!("{name} encrypt"), 1, || {
        cfb_mode::Encryptor::<&C>::inner_iv_init(&cipher, &iv).encrypt(black_box(packet));
    });
    run(group, &format!("{name} decrypt"), 1, || {
        cfb_mode::Decryptor::<&C>::inner_iv_init(&cipher, &iv).decrypt(black_box(packet));
    });
}

/// MB/s of the best of many runs of about a millisecond.
fn best(packets: usize, mut f: impl FnMut()) -> f64 {
    let mut calls = 1;
    let mut time = |calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| f());
        start.elapsed().as_secs_f64() / f64::from(calls)
    };
    while time(calls) * f64::from(calls) < 1e-3 {
        calls *= 2;
    }
    let seconds = (0..60).map(|_| time(calls)).fold(f64::INFINITY, f64::min);
    (packets * PACKET) as f64 / seconds / 1e6
}

/// Whole packets against kcp-go's.
fn table() {
    println!("{:20}{:>10}{:>10}{:>10}{:>10}{:>8}{:>8}", "MB/s", "seal", "open", "Go", "Go", "", "");
    for algorithm in &Algorithm::ALL[1..] {
        let mut work = Work::new(*algorithm);
        let seal = best(BATCH, || work.seal());
        let open = best(1, || work.open());
        print!("{:20}{seal:>10.0}{open:>10.0}", algorithm.name());
        let mut rows = GO.iter().chain([&GO_XTEA]);
        if let Some((_, go_seal, go_open)) = rows.find(|row| row.0 == algorithm.name()) {
            let ratios = (seal / f64::from(*go_seal), open / f64::from(*go_open));
            print!("{go_seal:>10}{go_open:>10}{:>7.2}x{:>7.2}x", ratios.0, ratios.1);
        }
        println!();
    }
    bare_table();
}

#[cfg(feature = "_testkit")]
fn bare_table() {
    let key = Key::derive("it's a secrect", Key::KCPTUN_SALT);
    for algorithm in &Algorithm::ALL[2..] {
        let key = &key.as_bytes()[..algorithm.key_len()];
        let Some(bare) = kcpx::fuzz::Bare::new(algorithm.name(), key) else { continue };
        let mut packets = batch();
        let mut slices = slices(&mut packets);
        let seal = best(BATCH, || bare.encrypt(black_box(&mut slices)));
        let open = best(1, || bare.decrypt(black_box(slices[0])));
        println!("bare {:15}{seal:>10.0}{open:>10.0}", algorithm.name());
    }
}

#[cfg(not(feature = "_testkit"))]
fn bare_table() {}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500));
    targets = packets, sizes, bare, oracles
}

fn main() {
    benches();
    Criterion::default().configure_from_args().final_summary();
    // `-- table` prints the table alone; with another filter, or in a test run, there is no table.
    if std::env::args().skip(1).all(|argument| argument == "--bench" || argument == "table") {
        table();
    }
}
