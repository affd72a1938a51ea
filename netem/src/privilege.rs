//! Permission to make namespaces, and children that end with their parent.

use std::fs;

use anyhow::Context as _;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{getegid, geteuid};

/// Lets a process that is not root make network namespaces, by a user namespace of its own. Does
/// nothing for root.
///
/// Call it first in `main`: the system rejects it once there are other threads.
///
/// # Errors
///
/// When the system gives no user namespaces to this user.
pub fn allow() -> anyhow::Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWUSER).context(
        "the system denies a user namespace: run this as root, or allow user namespaces",
    )?;
    // Each keeps its number, so that owners of files stay. A group may be mapped only after
    // changes of groups are forbidden.
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).with_context(|| {
            format!(
                "the system denies {file} of a user namespace: run this as root, or allow user \
                     namespaces"
            )
        })
    };
    write("uid_map", format!("{user} {user} 1"))?;
    write("setgroups", "deny".into())?;
    write("gid_map", format!("{group} {group} 1"))
}

/// Makes the system kill this process when the thread that started it ends, however that happens.
///
/// For programs which [`End::spawn`](crate::End::spawn) starts: they call it first, and nothing is
/// left behind even when the relay is killed.
///
/// # Errors
///
/// When the system does not know this.
pub fn die_with_parent() -> anyhow::Result<()> {
    set_pdeathsig(Signal::SIGKILL).context("the end of this process with its parent")
}
