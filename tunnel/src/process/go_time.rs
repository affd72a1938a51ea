//! Go's time layouts, used in file names for `snmplog`.

use std::fmt::Write;

use jiff::civil::DateTime;

/// Formats `time` by a layout of Go: `2006`, `01`, `02`, `15`, `04` and `05` are year, month, day,
/// hour, minute and second; everything else is literal.
///
/// Go has more tokens, such as `Jan` and `MST`; kcptun's users need these six in file names.
pub(super) fn format_go_time(layout: &str, time: DateTime) -> String {
    let mut formatted = String::with_capacity(layout.len());
    let mut rest = layout;
    while let Some(next) = rest.chars().next() {
        let tokens = [
            ("2006", i32::from(time.year()), 4),
            ("01", time.month().into(), 2),
            ("02", time.day().into(), 2),
            ("15", time.hour().into(), 2),
            ("04", time.minute().into(), 2),
            ("05", time.second().into(), 2),
        ];
        let token = tokens.into_iter().find(|(token, ..)| rest.starts_with(token));
        let Some((token, value, width)) = token else {
            formatted.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        // Writing to a string does not fail.
        let _written = write!(formatted, "{value:0width$}");
        rest = &rest[token.len()..];
    }
    formatted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_tokens_are_replaced_and_the_rest_stays() {
        let time = jiff::civil::date(2026, 1, 2).at(3, 4, 5, 678);
        for (layout, formatted) in [
            ("", ""),
            ("snmp.log", "snmp.log"),
            ("snmp-20060102.log", "snmp-20260102.log"),
            ("2006-01-02T15:04:05", "2026-01-02T03:04:05"),
            ("20060102150405", "20260102030405"),
            ("0102", "0102"),
            ("2007 1 2 3", "2007 1 2 3"),
            ("é-15-ü.csv", "é-03-ü.csv"),
            ("%Y %d", "%Y %d"),
            ("200", "200"),
            ("0", "0"),
        ] {
            assert_eq!(format_go_time(layout, time), formatted, "{layout}");
        }
        let late = jiff::civil::date(999, 12, 31).at(23, 59, 58, 0);
        assert_eq!(format_go_time("2006/01/02 15:04:05", late), "0999/12/31 23:59:58");
    }
}
