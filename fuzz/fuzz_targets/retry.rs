#![no_main]

mod count;

libfuzzer_sys::fuzz_target!(|data: &[u8]| count::count(kcpx::fuzz::retry(data)));
