//! Shows what KCP connections did, from a capture.

fn main() -> std::process::ExitCode {
    kcpx_trace::main()
}
