//! Compares the table of options with the help of kcptun's programs in the folder
//! `KCPX_KCPTUN_DIR`.

use std::process::Command;

use super::super::table::{Kind, find};
use super::*;

/// Intended differences: kcptun 20210922 defaults to smux version 1, later releases to 2, and this
/// server detects it.
const DIFFERS: [&str; 1] = ["smuxver"];

/// Checks a line such as `--datashard value, --ds value text (default: 10)`.
fn check_line(line: &str, role: Role) -> Option<String> {
    let line = line.trim();
    let flags = line.strip_prefix('-')?.split("  ").next()?;
    let flags = flags.split(", ").map(|flag| flag.trim_start_matches('-').replace(" value", ""));
    let flags: Vec<_> = flags.collect();
    let name = &flags[0];
    if ["help", "version"].contains(&name.as_str()) {
        return None;
    }
    let option = find(name, Some(role)).unwrap_or_else(|| panic!("{role}: no option {name}"));
    assert_eq!(option.alias, flags.get(1).map(String::as_str), "{role} {name}");
    assert_eq!(option.kind == Kind::Flag, !line.contains(" value"), "{role} {name}");
    let default = line.rsplit_once("(default: ").and_then(|(_, rest)| rest.split_once(')'));
    if let Some((default, _)) = default.filter(|_| !DIFFERS.contains(&name.as_str())) {
        assert_eq!(option.default_for(role), default.trim_matches('"'), "{role} {name}");
    }
    Some(name.clone())
}

#[test]
fn table_has_every_option_in_the_help_of_kcptun() {
    let Some(folder) = std::env::var_os("KCPX_KCPTUN_DIR").map(PathBuf::from) else {
        println!("SKIPPED: KCPX_KCPTUN_DIR names no folder with kcptun-client and kcptun-server");
        return;
    };
    for role in [Role::Client, Role::Server] {
        let program = folder.join(format!("kcptun-{role}"));
        let help = Command::new(program).arg("--help").output().unwrap().stdout;
        let help = String::from_utf8(help).unwrap();
        let names: Vec<_> = help.lines().filter_map(|line| check_line(line, role)).collect();
        println!("{role}: {}", names.join(" "));
        assert!(names.len() >= 20, "{help}");
    }
}
