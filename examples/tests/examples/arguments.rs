//! The command line of each example: its help, and a wrong argument.

use super::process::Example;

/// The examples that a manifest lists.
pub(crate) fn names(manifest: &str) -> Vec<&str> {
    let sections = manifest.split("[[example]]").skip(1);
    sections
        .filter_map(|section| section.lines().find_map(|line| line.strip_prefix("name = ")))
        .map(|name| name.trim_matches('"'))
        .collect()
}

/// Each ends with 0 after `--help`, which says more than its usage, and with 2 after an unknown argument,
/// which it names in one sentence that leads to the help.
pub(crate) fn check(manifest: &str) {
    for name in names(manifest) {
        let (code, help) = Example::start(name, &["--help"]).code();
        assert_eq!(code, Some(0), "{name} --help");
        assert!(
            help.iter().any(|line| line.to_lowercase().contains("usage: ")),
            "{name}: {help:#?}"
        );
        assert!(help.len() >= 8, "{name} --help teaches little: {help:#?}");

        let (code, lines) = Example::start(name, &["--no-such-option"]).code();
        assert_eq!(code, Some(2), "{name} --no-such-option: {lines:#?}");
        let text = lines.join("\n");
        assert!(text.starts_with("error: ") && text.contains("--no-such-option"), "{name}: {text}");
        assert!(text.contains("--help"), "{name}: {text}");
        assert!(!text.contains("panicked"), "{name}: {text}");
    }
}
