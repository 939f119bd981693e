//! Numbers as messages show them.

/// `1 layer`, `2 layers`; `1 entry`, `2 entries`.
pub(crate) fn counted(count: usize, one: &str) -> String {
    match (count, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        (_, None) => format!("{count} {one}s"),
    }
}

/// `is` for one, `are` for others.
pub(crate) fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// `8 experts in 16 slots on 4 ranks`.
pub(crate) fn shape(experts: usize, slots: usize, ranks: usize) -> String {
    format!(
        "{} in {} on {}",
        counted(experts, "expert"),
        counted(slots, "slot"),
        counted(ranks, "rank")
    )
}

/// A number that may be anything, without the hundreds of digits that `1e300` has.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&value.abs()) {
        value.to_string()
    } else {
        format!("{value:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, number};

    #[test]
    fn one_is_singular() {
        assert_eq!(
            [
                counted(0, "layer"),
                counted(1, "layer"),
                counted(2, "layer")
            ],
            ["0 layers", "1 layer", "2 layers"]
        );
        assert_eq!(
            [counted(1, "entry"), counted(2, "entry")],
            ["1 entry", "2 entries"]
        );
    }

    #[test]
    fn numbers_are_short() {
        let shown = [
            0.0,
            -2.0,
            0.25,
            9_007_199_254_740_994.0,
            1e16,
            18_446_744_073_709_551_616.0,
            -1e300,
            1e-320,
            f64::INFINITY,
            f64::NAN,
        ];
        assert_eq!(
            shown.map(number),
            [
                "0",
                "-2",
                "0.25",
                "9007199254740994",
                "1e16",
                "1.8446744073709552e19",
                "-1e300",
                "1e-320",
                "inf",
                "NaN"
            ]
        );
    }
}
