//! kcpx side by side with other transports.

mod args;
mod chart;
mod measure;
mod os;
mod peers;
mod process;
mod programs;
mod protocol;
mod report;
mod roles;
mod workload;

use anyhow::Context as _;
use clap::Parser as _;

use args::Args;

fn main() -> anyhow::Result<()> {
    let mut args = Args::parse();
    // One thread per process: each is pinned to one CPU.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(role) = args.role.take() {
        return runtime.block_on(roles::play(role));
    }
    // Whether they can be written is better known now than in an hour.
    let json = args.json.as_ref().map(|path| {
        std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))
    });
    if let Some(directory) = &args.svg {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }

    let samples = runtime.block_on(measure::all(&args, json.transpose()?))?;
    print!("{}", report::markdown(&args, &samples));
    if let Some(directory) = &args.svg {
        for (name, svg) in chart::all(&samples) {
            let path = directory.join(name);
            std::fs::write(&path, svg)
                .with_context(|| format!("cannot write {}", path.display()))?;
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(())
}
