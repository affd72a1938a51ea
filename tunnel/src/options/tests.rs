//! Tests of all sources of options together; each makes settings as a process would.

mod documents;
mod refusals;
mod reload;
mod sources;
mod table;

use std::path::PathBuf;

use super::*;
use crate::settings::{ClientSettings, ServerSettings, Tunnel};

/// Loads an invocation of `program` with variables `name=value`.
fn load_with(program: &str, args: &[&str], variables: &[&str]) -> Result<Loaded, OptionsError> {
    let environment = variables.iter().filter_map(|variable| variable.split_once('='));
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let argv = [program].into_iter().chain(args.iter().copied());
    Invocation::new(argv, environment.collect()).load()
}

/// Loads `kcpx-tunnel` with these arguments, without variables.
fn load(args: &[&str]) -> Result<Loaded, OptionsError> {
    load_with("kcpx-tunnel", args, &[])
}

fn client(args: &[&str]) -> ClientSettings {
    let args: Vec<_> = ["client"].into_iter().chain(args.iter().copied()).collect();
    match load(&args).unwrap_or_else(|error| panic!("{args:?}: {error}")).settings.tunnels.remove(0)
    {
        Tunnel::Client(client) => client,
        Tunnel::Server(_) => panic!("{args:?}: a server"),
    }
}

fn server(args: &[&str]) -> ServerSettings {
    let args: Vec<_> = ["server"].into_iter().chain(args.iter().copied()).collect();
    match load(&args).unwrap_or_else(|error| panic!("{args:?}: {error}")).settings.tunnels.remove(0)
    {
        Tunnel::Server(server) => server,
        Tunnel::Client(_) => panic!("{args:?}: a client"),
    }
}

/// A file that is removed on drop.
struct TempFile(tempfile::TempPath);

impl TempFile {
    fn new(text: &str) -> Self {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

/// Compares the help with the files in `tests/help`. To update them after a change:
///
/// ```sh
/// UPDATE_HELP=1 cargo test -p kcpx-tunnel help_equals_its_snapshot
/// ```
#[test]
fn help_equals_its_snapshot() {
    for (name, role) in
        [("both", None), ("client", Some(Role::Client)), ("server", Some(Role::Server))]
    {
        let path = format!("{}/tests/help/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let help = args::help(role);
        if std::env::var_os("UPDATE_HELP").is_some() {
            fs::write(&path, &help).unwrap();
        }
        let snapshot = fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
        assert!(help == snapshot, "{path} differs; UPDATE_HELP=1 writes it again:\n{help}");
    }
}

#[test]
fn help_and_version_end_with_status_zero() {
    for args in [&["client", "-h"][..], &["server", "--help"], &["-help"], &["-v"], &["--version"]]
    {
        let Err(OptionsError::CommandLine(error)) = load(args) else { panic!("{args:?}") };
        assert_eq!(error.exit_code(), 0, "{args:?}");
    }
    let Err(OptionsError::CommandLine(error)) = load(&["-version"]) else { panic!("no version") };
    assert_eq!(error.to_string(), format!("kcpx-tunnel {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn help_names_every_option_of_the_role() {
    for role in [Role::Client, Role::Server] {
        let help = args::help(Some(role));
        for option in super::table::OPTIONS.iter().filter(|option| option.is_for(Some(role))) {
            let shown = help.contains(&format!("--{}", option.name))
                || (option.name.len() == 1 && help.contains(&format!("-{}", option.name)));
            assert_eq!(shown, option.group != super::table::Group::Hidden, "{}", option.name);
        }
    }
}
