#![no_main]

mod count;
mod records;

libfuzzer_sys::fuzz_target!(|data: &[u8]| count::count(kcpx::fuzz::kcp_ops(data)));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    records::mutate(data, size, max_size, seed, kcpx::fuzz::KCP_OPS)
});
