#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kcpx_smux::fuzz::smux_session(data));
