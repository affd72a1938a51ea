//! The command line: Go's forms of flags, rewritten before clap reads them.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Arg, ArgAction, Command};

use super::error::OptionsError;
use super::table::{self, Group, Kind, OPTIONS, Opt, Role};
use super::values::{Place, Values};

/// Width of the help in columns.
const WIDTH: usize = 100;

#[derive(Debug)]
pub(super) struct CommandLine {
    /// The role named by the program or the first argument.
    pub(super) role: Option<Role>,
    pub(super) values: Values,
}

/// Reads the command line, including `argv[0]`.
pub(super) fn parse(argv: &[OsString]) -> Result<CommandLine, OptionsError> {
    let mut args = Vec::with_capacity(argv.len());
    for (number, arg) in argv.iter().enumerate().skip(1) {
        args.push(arg.to_str().ok_or(OptionsError::NotUtf8(number))?);
    }
    let mut args = args.as_slice();
    let mut role = argv.first().and_then(|program| role_of_program(program));
    if role.is_none()
        && let Some((first, rest)) = args.split_first()
        && !first.starts_with('-')
    {
        let unknown = || OptionsError::UnknownRole { given: (*first).to_owned() };
        (role, args) = (Some(Role::from_name(first).ok_or_else(unknown)?), rest);
    }
    let mut values = Values::default();
    let matches = command(role).try_get_matches_from(rewrite(args, role))?;
    for option in OPTIONS.iter().filter(|option| option.is_for(role)) {
        if let Some(mut texts) = matches.get_many::<String>(option.name)
            && let Some(last) = texts.next_back()
        {
            values.set(option, last.as_str(), Place::CommandLine(option.name));
        }
    }
    Ok(CommandLine { role, values })
}

/// Returns the role in the program's file name, such as `kcptun-client`.
fn role_of_program(program: &OsStr) -> Option<Role> {
    let name = Path::new(program).file_stem()?.to_str()?.to_ascii_lowercase();
    [Role::Client, Role::Server].into_iter().find(|role| name.contains(&role.to_string()))
}

/// Rewrites Go's forms to `--name=value`: Go accepts one dash like two, and values that begin with
/// a dash. Leaves unknown options for clap to report.
fn rewrite(args: &[&str], role: Option<Role>) -> Vec<String> {
    let mut rewritten = vec![String::from("kcpx-tunnel")];
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        let Some(flag) = arg.strip_prefix('-').filter(|flag| !flag.is_empty() && *flag != "-")
        else {
            rewritten.push(arg.to_owned());
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (flag, None),
        };
        let Some(option) = table::find(name, role) else {
            let dashes = if name.len() == 1 { "-" } else { "--" };
            rewritten.push(format!("{dashes}{flag}"));
            continue;
        };
        let value = match (value, option.kind) {
            (None, Kind::Flag) => Some("true"),
            (None, Kind::Text | Kind::Int) => args.next().copied(),
            (given, _) => given,
        };
        let dashes = if option.name.len() == 1 { "-" } else { "--" };
        rewritten.push(match value {
            Some(value) => format!("{dashes}{}={value}", option.name),
            None => format!("{dashes}{}", option.name),
        });
    }
    rewritten
}

/// Builds the command of one role; without a role, of all options, for a file that names the roles.
fn command(role: Option<Role>) -> Command {
    let command = Command::new("kcpx-tunnel")
        .version(env!("CARGO_PKG_VERSION"))
        .max_term_width(WIDTH)
        .disable_version_flag(true)
        .disable_help_flag(true);
    let command = match role {
        Some(Role::Client) => command
            .bin_name("kcpx-tunnel client")
            .about(CLIENT_ABOUT)
            .override_usage("kcpx-tunnel client [OPTIONS]")
            .after_help(format!("{FORMS}\n\n{CLIENT_EXAMPLES}")),
        Some(Role::Server) => command
            .bin_name("kcpx-tunnel server")
            .about(SERVER_ABOUT)
            .override_usage("kcpx-tunnel server [OPTIONS]")
            .after_help(format!("{FORMS}\n\n{SERVER_EXAMPLES}")),
        None => command
            .about(ABOUT)
            .override_usage(
                "kcpx-tunnel client [OPTIONS]\n       kcpx-tunnel server [OPTIONS]\n       \
                 kcpx-tunnel -c FILE",
            )
            .after_help(format!("{FORMS}\n\n{EXAMPLES}")),
    };
    let options = OPTIONS.iter().filter(|option| option.is_for(role));
    let command = options.map(|option| arg(option, role)).fold(command, Command::arg);
    let heading = Group::Process.heading();
    let version = Arg::new("version").short('v').long("version").action(ArgAction::Version);
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    command
        .arg(version.help("Print the version").help_heading(heading))
        .arg(help.help("Print this help").help_heading(heading))
}

fn arg(option: &'static Opt, role: Option<Role>) -> Arg {
    let arg = Arg::new(option.name)
        .action(ArgAction::Append)
        .help(help_of(option, role))
        .help_heading(option.group.heading())
        // Without a role, the help lists only options of the process.
        .hide(option.group == Group::Hidden || (role.is_none() && option.group != Group::Process));
    let arg = match option.alias {
        Some(alias) if alias.len() > 1 => arg.visible_alias(alias),
        // Without a role, `l` would be two options.
        Some(alias) if role.is_some() => arg.short(alias.chars().next()),
        _ => arg,
    };
    let arg = if option.name.len() == 1 {
        arg.short(option.name.chars().next())
    } else {
        arg.long(option.name)
    };
    match option.kind {
        Kind::Flag => arg.num_args(0..=1).require_equals(true).value_name(option.unit),
        Kind::Text | Kind::Int => arg.num_args(1).value_name(option.unit).allow_hyphen_values(true),
    }
}

/// The help of an option, with its default.
fn help_of(option: &Opt, role: Option<Role>) -> String {
    // Without a role, the help lists only options with one default.
    let default = option.default_for(role.unwrap_or(Role::Client));
    if default.is_empty() || (option.kind == Kind::Flag && default == "false") {
        return option.help.to_owned();
    }
    format!("{} [default: {default}]", option.help)
}

/// Renders the help as text, `WIDTH` columns wide.
#[cfg(test)]
pub(super) fn help(role: Option<Role>) -> String {
    command(role).term_width(WIDTH).render_help().to_string()
}

const ABOUT: &str = "Carries TCP connections over KCP, a reliable protocol over UDP; understands \
    either side of kcptun.

`kcpx-tunnel client --help` and `kcpx-tunnel server --help` have the options of each role. A \
    program name that contains `client` or `server`, such as a link called kcptun-client, sets the \
    role too.";

const FORMS: &str = "Options are written as with kcptun: -mode fast3, --mode fast3 and -mode=fast3 \
    are the same; flags are bare or have =false; integers may be 0x10 or 0b1; of an option given \
    twice the last one counts. The order of force: defaults, KCPTUN_KEY, the command line, the file \
    of -c. The variable TOKIO_WORKER_THREADS has the number of worker threads; by default there is one \
    for every second CPU.";

const EXAMPLES: &str = "\
A file with two tunnels:
  [{\"role\": \"client\", \"localaddr\": \"127.0.0.1:5001\", \"remoteaddr\": \"a.example:29900\"},
   {\"role\": \"client\", \"localaddr\": \"127.0.0.1:5002\", \"remoteaddr\": \"b.example:29900\"}]";

const CLIENT_ABOUT: &str = "The client of a tunnel: accepts TCP connections and carries them to a \
    server, over KCP. The server is this program or kcptun.";

const CLIENT_EXAMPLES: &str = "\
Examples:
  KCPTUN_KEY='a long passphrase' kcpx-tunnel client -l 127.0.0.1:12948 -r vps.example:29900
      for a server of kcptun with the same key
  kcpx-tunnel client -c client.json -crypt aes-128-gcm -nocomp -mode fast3
      with the rest in a file; what is in the file overrides the command line
  kcpx-tunnel client -r vps.example:29900-29910 -conn 4 -autoexpire 600
      four sessions, each renewed every ten minutes on a random port of the range";

const SERVER_ABOUT: &str = "The server of a tunnel: takes connections of clients over KCP and \
    carries them to a TCP target. The clients are this program or kcptun.";

const SERVER_EXAMPLES: &str = "\
Examples:
  KCPTUN_KEY='a long passphrase' kcpx-tunnel server -l :29900 -t 127.0.0.1:22
      SSH for clients of kcptun and of this program
  kcpx-tunnel server -l :29900-29910 -t /run/app.sock -crypt aes-128-gcm -mode fast3
      eleven UDP ports, a unix socket as the target";
