//! GF(2^8) against bitwise multiplication and the crate reed-solomon-erasure.

use reed_solomon_erasure::galois_8::ReedSolomon;

use super::*;
use crate::testkit::rng::Rng;

/// Multiplication as polynomials, bit by bit.
fn slow(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted) = (0, a);
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = (shifted << 1) ^ if shifted & 0x80 != 0 { POLYNOMIAL } else { 0 };
    }
    product
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.next() as u8).take(len).collect()
}

/// Rule: W-128.
#[test]
fn product_equals_bitwise_multiplication() {
    for a in 0..=255 {
        for b in 0..=255 {
            assert_eq!(multiply(a, b), slow(a, b), "{a} times {b}");
        }
    }
}

#[test]
fn product_with_the_inverse_is_one() {
    assert_eq!(inverse(0), 0);
    for a in 1..=255 {
        assert_eq!(slow(a, inverse(a)), 1, "{a}");
    }
}

#[test]
fn kernels_compute_every_product() {
    let all: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::all() {
        for coefficient in 0..=255 {
            let mut row = vec![0; 256];
            kernel.fold(&mut row, 256, &[coefficient], &all);
            for (a, product) in all.iter().zip(row) {
                assert_eq!(product, slow(*a, coefficient), "{} {a}", kernel.name());
            }
        }
    }
}

#[test]
fn kernels_equal_the_scalar_kernel() {
    let scalar = *Kernel::all().last().expect("the scalar kernel");
    for seed in 0..2_000 {
        let mut rng = Rng::new(seed);
        let (len, count) = (rng.spread(0, 1_500) as usize, rng.range(0, 9) as usize);
        let stride = padded(len) + LANE * rng.below(3) as usize;
        let (offset, end) = (rng.below(64) as usize, rng.below(64) as usize);
        let (source, coefficients) = (bytes(&mut rng, offset + len), bytes(&mut rng, count));
        let rows = bytes(&mut rng, offset + count * stride + end);
        let fold = |kernel: Kernel| {
            let mut rows = rows.clone();
            kernel.fold(&mut rows[offset..], stride, &coefficients, &source[offset..]);
            rows
        };
        let expected = fold(scalar);
        for kernel in Kernel::all() {
            assert!(fold(kernel) == expected, "seed {seed}, {}", kernel.name());
        }
        // Nothing changes outside the rows, and after the source's last lane.
        for (at, (before, after)) in rows.iter().zip(&expected).enumerate() {
            let place = at.checked_sub(offset).filter(|at| *at < count * stride);
            let inside = place.is_some_and(|at| at % stride < len);
            assert!(inside || before == after, "seed {seed}, byte {at}");
        }
    }
}

/// The vector kernels, the fastest first, and whether this processor has the instructions of each.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn vector_kernels() -> Vec<(&'static str, bool)> {
    let gfni = is_x86_feature_detected!("gfni");
    let avx2 = is_x86_feature_detected!("avx2");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    vec![
        ("gfni-avx512", gfni && avx512),
        ("gfni-avx2", gfni && avx2),
        ("avx2", avx2),
        ("ssse3", is_x86_feature_detected!("ssse3")),
    ]
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
fn vector_kernels() -> Vec<(&'static str, bool)> {
    Vec::new()
}

#[test]
fn kernels_are_all_of_this_processor_and_the_fastest_is_used() {
    let (has, lacks): (Vec<_>, Vec<_>) = vector_kernels().into_iter().partition(|kernel| kernel.1);
    let expected: Vec<_> = has.iter().map(|kernel| kernel.0).chain(["scalar"]).collect();
    let names: Vec<_> = Kernel::all().into_iter().map(Kernel::name).collect();
    assert_eq!(names, expected);
    assert_eq!(Kernel::best().name(), expected[0]);
    for (name, _) in lacks {
        kcpx_skip::skip(format!("a processor with the instructions of the kernel {name}"));
    }
}

/// Encodes, and reconstructs random losses, like the other implementation.
fn check_shape(data: usize, parity: usize, rng: &mut Rng) {
    let other = ReedSolomon::new(data, parity).unwrap();
    let len = rng.range(1, 40) as usize;
    let mut shards: Vec<Vec<u8>> = (0..data).map(|_| bytes(rng, len)).collect();
    shards.resize(data + parity, vec![0; len]);
    other.encode(&mut shards).unwrap();
    let places: Vec<u8> = (0..=255).take(data + parity).collect();
    assert_eq!(
        combine(&places[..data], &places[data..], &shards),
        shards[data..],
        "{data}+{parity}"
    );
    for _ in 0..4 {
        let mut shuffled = places.clone();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let (known, wanted) = shuffled.split_at(data);
        let expected: Vec<_> = wanted.iter().map(|at| shards[usize::from(*at)].clone()).collect();
        assert_eq!(combine(known, wanted, &shards), expected, "{data}+{parity} {known:?}");
        let mut left: Vec<_> = shards.iter().cloned().map(Some).collect();
        wanted.iter().for_each(|at| left[usize::from(*at)] = None);
        other.reconstruct(&mut left).unwrap();
        assert!(left.into_iter().map(Option::unwrap).eq(shards.iter().cloned()));
    }
}

fn combine(known: &[u8], wanted: &[u8], shards: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let (table, len) = (coefficients(known, wanted), shards[0].len());
    let stride = padded(len);
    let mut rows = vec![0; stride * wanted.len()];
    for (at, column) in known.iter().zip(table.chunks(wanted.len())) {
        Kernel::best().fold(&mut rows, stride, column, &shards[usize::from(*at)]);
    }
    rows.chunks(stride).map(|row| row[..len].to_vec()).collect()
}

#[test]
fn common_layouts_equal_reed_solomon_erasure() {
    let shapes = [
        (1, 1),
        (2, 1),
        (3, 1),
        (3, 2),
        (5, 5),
        (10, 3),
        (20, 5),
        (20, 10),
        (30, 15),
        (70, 30),
        (100, 28),
        (128, 127),
        (128, 128),
        (200, 55),
        (200, 56),
        (255, 1),
        (1, 255),
    ];
    for (data, parity) in shapes {
        check_shape(data, parity, &mut Rng::new(data as u64));
    }
}

#[test]
fn random_layouts_equal_reed_solomon_erasure() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let data = rng.spread(1, 255) as usize;
        let parity = rng.spread(1, 256 - data as u64) as usize;
        println!("seed {seed}: {data}+{parity}");
        check_shape(data, parity, &mut rng);
    }
}

#[test]
fn parity_coefficients_equal_the_golden_matrix() {
    assert_eq!(coefficients(&[0, 1], &[2]), [3, 2]);
    let known: Vec<u8> = (0..10).collect();
    let rows = [
        [0x81, 0x96, 0xaf, 0xb8, 0xd2, 0xc4, 0xfe, 0xe8, 0x03, 0x02],
        [0x96, 0x81, 0xb8, 0xaf, 0xc4, 0xd2, 0xe8, 0xfe, 0x02, 0x03],
        [0xbf, 0xd6, 0x62, 0x0a, 0x06, 0x6f, 0xdf, 0xb7, 0x05, 0x04],
    ];
    let table = coefficients(&known, &[10, 11, 12]);
    for (row, expected) in rows.iter().enumerate() {
        assert!(table.iter().skip(row).step_by(3).eq(expected));
    }
}
