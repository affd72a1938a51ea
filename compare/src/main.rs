//! kcpx side by side with other transports.
#![cfg_attr(
    not(all(feature = "together", target_os = "linux")),
    allow(dead_code, reason = "only what runs across a path uses it")
)]

mod args;
mod chart;
mod clock;
#[cfg(feature = "together")]
mod machine;
mod measure;
mod os;
#[cfg(all(feature = "together", target_os = "linux"))]
mod path;
mod peers;
mod process;
mod programs;
mod protocol;
mod report;
mod roles;
mod workload;

use std::fs::File;

use anyhow::Context as _;

use args::{Args, Case};
use programs::Programs;

fn main() -> anyhow::Result<()> {
    let mut args = Args::from_command_line();
    if let Some(role) = args.role.take() {
        return runtime()?.block_on(roles::play(role));
    }
    let groups = args.groups()?;
    let (across, loopback): (Vec<_>, Vec<_>) =
        groups.iter().cloned().partition(|group| group[0].workload.is_across_path());
    // Before there are threads, and before an hour was spent on what needs no path.
    if !across.is_empty() {
        prepare_paths(&args)?;
    }
    // Whether they can be written is better known now than in an hour.
    let json = args
        .json
        .as_ref()
        .map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let json = json.transpose()?;
    if let Some(directory) = &args.svg {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }

    let runtime = runtime()?;
    let peers = groups.iter().flatten().map(|case| case.peer);
    let peers = peers.chain(args.path.beside).chain(args.path.server);
    let programs = runtime.block_on(Programs::of(peers))?;
    let samples = runtime.block_on(measure::all(&args, &loopback, &programs, json.as_ref()))?;
    print!("{}", report::markdown(&args, &samples));
    draw(&args, chart::all(&samples))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, across_paths(&args, &across, &programs, json.as_ref()))
}

/// One thread per process: each is pinned to one CPU.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

#[cfg(all(feature = "together", target_os = "linux"))]
fn prepare_paths(args: &Args) -> anyhow::Result<()> {
    kcpx_relay::allow()?;
    path::check(args)
}

#[cfg(not(all(feature = "together", target_os = "linux")))]
fn prepare_paths(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("msg and bulk need the network namespaces of Linux, and the feature `together`")
}

#[cfg(all(feature = "together", target_os = "linux"))]
async fn across_paths(
    args: &Args,
    groups: &[Vec<Case>],
    programs: &Programs,
    json: Option<&File>,
) -> anyhow::Result<()> {
    let samples = path::measure::all(args, groups, programs, json).await?;
    print!("{}", path::report::markdown(args, &samples));
    draw(args, path::report::charts(&samples))
}

#[cfg(not(all(feature = "together", target_os = "linux")))]
async fn across_paths(
    _args: &Args,
    _groups: &[Vec<Case>],
    _programs: &Programs,
    _json: Option<&File>,
) -> anyhow::Result<()> {
    Ok(())
}

fn draw(args: &Args, charts: Vec<(String, String)>) -> anyhow::Result<()> {
    let Some(directory) = &args.svg else { return Ok(()) };
    for (name, svg) in charts {
        let path = directory.join(name);
        std::fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
