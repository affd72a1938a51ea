//! The table: a row for each attack, each figure with its bound.

use crate::sources::Traffic;

/// The figures of a row, in the order of the table.
#[derive(Clone, Copy, Debug)]
enum Column {
    Datagrams,
    Bytes,
    Memory,
    Cpu,
    Clients,
    Also,
}

const TITLES: [&str; 6] = [
    "datagrams out per datagram in",
    "bytes out per byte in",
    "memory of the server, MiB more",
    "CPU of the server",
    "honest clients served",
    "and",
];

/// One attack.
#[derive(Clone, Debug)]
pub(super) struct Row {
    attack: String,
    cells: [Vec<String>; 6],
    held: bool,
    test: &'static str,
}

impl Row {
    /// `test` holds the same law in virtual time.
    pub(super) fn new(attack: impl Into<String>, test: &'static str) -> Self {
        Self { attack: attack.into(), cells: Default::default(), held: true, test }
    }

    /// An attack that came to no end.
    pub(super) fn failed(attack: &str, error: &anyhow::Error) -> Self {
        Self::new(attack, "").cell(Column::Also, format!("{error:#}"), false)
    }

    /// The system does not have what the attack needs, or does not permit it.
    pub(super) fn skipped(self, reason: &str) -> Self {
        self.cell(Column::Also, format!("SKIPPED: {reason}"), true)
    }

    pub(super) fn held(&self) -> bool {
        self.held
    }

    fn cell(mut self, column: Column, text: String, held: bool) -> Self {
        let missed = if held { "" } else { " MISSED" };
        self.cells[column as usize].push(format!("{text}{missed}"));
        self.held &= held;
        self
    }

    /// The answers to the attacker for its datagrams. An infinite bound is none.
    pub(super) fn traffic(self, traffic: Traffic, most_datagrams: f64, most_bytes: f64) -> Self {
        let datagrams = traffic.received as f64 / traffic.sent.max(1) as f64;
        let bytes = traffic.received_bytes as f64 / traffic.sent_bytes.max(1) as f64;
        let text = |figure: f64, most: f64| match most.is_finite() {
            true => format!("{figure:.2}, at most {most}"),
            false => format!("{figure:.2}"),
        };
        self.cell(Column::Datagrams, text(datagrams, most_datagrams), datagrams <= most_datagrams)
            .cell(Column::Bytes, text(bytes, most_bytes), bytes <= most_bytes)
    }

    /// Datagrams alone.
    pub(super) fn datagrams(self, figure: f64, most: f64) -> Self {
        self.cell(Column::Datagrams, format!("{figure:.2}, at most {most}"), figure <= most)
    }

    pub(super) fn memory(self, kib: u64, most_mib: u64) -> Self {
        let text = format!("{:.1}, at most {most_mib}", kib as f64 / 1_024.0);
        self.cell(Column::Memory, text, kib <= most_mib << 10)
    }

    /// Shown, and no law: it depends on the machine.
    pub(super) fn cpu(self, cores: f64) -> Self {
        self.cell(Column::Cpu, format!("{:.0} %", cores * 100.0), true)
    }

    /// At least 99 of 100.
    pub(super) fn clients(self, (served, of): (u64, u64)) -> Self {
        self.cell(Column::Clients, format!("{served} of {of}"), served * 100 >= of * 99)
    }

    /// Any other figure, which is at most a bound.
    pub(super) fn at_most(self, what: &str, figure: f64, most: f64) -> Self {
        self.cell(Column::Also, format!("{what} {figure:.0}, at most {most}"), figure <= most)
    }

    /// Any other figure, which is at least a bound.
    pub(super) fn at_least(self, what: &str, figure: f64, least: f64) -> Self {
        self.cell(Column::Also, format!("{what} {figure:.0}, at least {least}"), figure >= least)
    }

    /// Any other figure, which has one right value.
    pub(super) fn exactly(self, what: &str, figure: u64, expected: u64) -> Self {
        self.cell(Column::Also, format!("{what} {figure} of {expected}"), figure == expected)
    }
}

/// The head of the table, in Markdown.
pub(super) fn print_head() {
    println!("| attack | {} | law | in virtual time |", TITLES.join(" | "));
    println!("|---|{}---|---|", "---|".repeat(TITLES.len()));
}

pub(super) fn print(row: &Row) {
    let cells = row.cells.clone().map(|texts| texts.join("; ")).join(" | ");
    let law = if row.held { "held" } else { "MISSED" };
    println!("| {} | {cells} | {law} | `{}` |", row.attack, row.test);
}
