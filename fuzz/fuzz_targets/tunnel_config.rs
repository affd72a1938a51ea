#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kcpx_tunnel::options::fuzz::tunnel_config(data));
