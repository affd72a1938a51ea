#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kcpx_trace::fuzz::capture(data));
