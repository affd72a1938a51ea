//! Runs tshark with the dissector.

pub(crate) use kcpx_interop::tshark::repository;

use crate::capture::Capture;

/// Separates the values of a field that a datagram has several times.
const AGGREGATOR: char = '|';

/// tshark with the dissector.
#[derive(Debug)]
pub(crate) struct Tshark {
    program: kcpx_interop::tshark::Tshark,
    decode_as: bool,
}

impl Tshark {
    /// `None`, reported as skipped, if tshark is missing.
    pub(crate) fn find() -> Option<Self> {
        let program = kcpx_interop::tshark::Tshark::find().unwrap()?;
        Some(Self { program, decode_as: false })
    }

    /// With "Decode As" for the port of the server.
    pub(crate) fn decode_as(mut self) -> Self {
        self.decode_as = true;
        self
    }

    /// With the dissector that a command of the README installs, in the home folder that it is run with.
    pub(crate) fn installed(self, command: &str) -> Self {
        Self { program: self.program.installed(command).unwrap(), ..self }
    }

    fn run(&self, capture: &Capture, arguments: &[&str]) -> String {
        let port = format!("udp.port=={},kcp", capture.ports[1]);
        let decode_as = if self.decode_as { &["-d", &port][..] } else { &[] };
        self.program.read(&capture.bytes(), &[decode_as, arguments].concat()).unwrap()
    }

    /// The fields of each datagram.
    pub(crate) fn rows(&self, capture: &Capture, fields: &[&'static str]) -> Vec<Row> {
        self.rows_with(capture, &[], fields)
    }

    /// The fields of each datagram, with further options.
    pub(crate) fn rows_with(
        &self,
        capture: &Capture,
        options: &[&str],
        fields: &[&'static str],
    ) -> Vec<Row> {
        let mut names = vec!["frame.protocols", "_ws.expert.message", "_ws.col.Info"];
        names.extend(fields);
        let aggregator = format!("aggregator={AGGREGATOR}");
        let mut arguments = vec!["-T", "fields", "-E", "separator=/t", "-E", &aggregator];
        arguments.extend(options);
        for name in &names {
            arguments.extend(["-e", name]);
        }
        let text = self.run(capture, &arguments);
        let row = |line: &str| {
            let values = line.split('\t').map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(values.len(), names.len(), "{line}");
            Row { names: names.clone(), values }
        };
        let rows = text.lines().map(row).collect::<Vec<_>>();
        assert_eq!(rows.len(), capture.datagrams.len());
        rows
    }

    /// All that is shown of all datagrams.
    pub(crate) fn details(&self, capture: &Capture) -> String {
        self.run(capture, &["-V"])
    }
}

/// What a datagram has of the fields.
#[derive(Debug)]
pub(crate) struct Row {
    names: Vec<&'static str>,
    values: Vec<String>,
}

impl Row {
    /// The values of a field, in order.
    pub(crate) fn all(&self, field: &str) -> Vec<&str> {
        let place = self.names.iter().position(|name| *name == field);
        let text = &self.values[place.unwrap_or_else(|| panic!("{field} was not asked for"))];
        if text.is_empty() { Vec::new() } else { text.split(AGGREGATOR).collect() }
    }

    pub(crate) fn numbers(&self, field: &str) -> Vec<u32> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
            None => text.parse().unwrap(),
        };
        self.all(field).into_iter().map(number).collect()
    }

    pub(crate) fn seconds(&self, field: &str) -> Vec<f64> {
        self.all(field).into_iter().map(|text| text.parse().unwrap()).collect()
    }

    pub(crate) fn has(&self, field: &str) -> bool {
        !self.all(field).is_empty()
    }

    pub(crate) fn expert(&self) -> String {
        self.all("_ws.expert.message").join(", ")
    }

    /// The info column without the ports.
    pub(crate) fn info(&self) -> String {
        let info = self.all("_ws.col.Info").join("|");
        info.split(' ').skip(3).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn is_kcp(&self) -> bool {
        self.all("frame.protocols").join(":").split(':').any(|protocol| protocol == "kcp")
    }

    pub(crate) fn assert_well_formed(&self) {
        assert!(self.is_kcp(), "{self:?}");
        for word in
            ["Malformed", "malformed", "Unknown", "Bytes behind", "left", "Not plain", "several"]
        {
            assert!(!self.expert().contains(word), "{self:?}");
        }
    }
}
