//! Runs commands with a path between them that delays and loses packets.

#[cfg(target_os = "linux")]
mod args;
#[cfg(target_os = "linux")]
mod bulk;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod conditions;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod traces;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<std::process::ExitCode> {
    args::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("relay needs the network namespaces of Linux");
    std::process::ExitCode::from(2)
}
