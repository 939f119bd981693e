//! Sums whose order does not matter: fixed point, in integers.
//!
//! A value is a whole number of 2⁻⁷² in 128 bits: it is rounded once, when it is converted, and adding
//! is exact. So parts of a sum may be made anywhere and put together in any order. 2⁻⁷² is
//! 2·10⁻²², far below what `f64` sums of a sequence keep of values that matter; the largest sum is
//! 2⁵⁵, 3.6·10¹⁶.

/// 2⁷²
const ONE: f64 = (1u128 << 72) as f64;
/// What a value has to be below, scaled: two of them still add up.
const LIMIT: f64 = (1u128 << 126) as f64;

/// Rounds to the nearest; `None` for what is not finite, or 2⁵⁴ or more.
pub(crate) fn from_f64(value: f64) -> Option<i128> {
    let scaled = value * ONE;
    // Not so for NaN either.
    (scaled.abs() < LIMIT).then(|| scaled.round_ties_even() as i128)
}

/// Rounds to the nearest.
pub(crate) fn to_f64(value: i128) -> f64 {
    value as f64 / ONE
}

/// Why a value cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    NotFinite,
    TooLarge,
}

/// Adds a value.
pub(crate) fn add(sum: &mut i128, value: f64) -> Result<(), Unusable> {
    let unusable = if value.is_finite() {
        Unusable::TooLarge
    } else {
        Unusable::NotFinite
    };
    let value = from_f64(value).ok_or(unusable)?;
    *sum = sum.checked_add(value).ok_or(unusable)?;
    Ok(())
}

/// Adds values one by one.
pub(crate) fn add_all(sums: &mut [i128], values: &[f64]) -> Result<(), Unusable> {
    sums.iter_mut()
        .zip(values)
        .try_for_each(|(sum, &value)| add(sum, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_matter() {
        let values: Vec<f64> = (0..1000)
            .map(|i| f64::from(i).sin() * 10f64.powi(i % 30 - 15))
            .collect();
        let sum = |values: &mut dyn Iterator<Item = &f64>| {
            let mut sum = 0;
            for &value in values {
                assert_eq!(add(&mut sum, value), Ok(()));
            }
            sum
        };
        let forward = sum(&mut values.iter());
        assert_eq!(forward, sum(&mut values.iter().rev()));
        let halves = sum(&mut values[500..].iter()) + sum(&mut values[..500].iter());
        assert_eq!(forward, halves);
    }

    #[test]
    fn conversion_rounds_to_the_nearest_multiple() {
        for value in [0.0, 1.0, -2.5, 1e16, -1e-4, 0.1] {
            let found = from_f64(value).map(to_f64);
            assert_eq!(found, Some(value), "{value} has few enough digits");
        }
        assert_eq!(from_f64(0.75 / ONE), Some(1));
        assert_eq!(from_f64(-0.25 / ONE), Some(0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut sum = 0;
        assert_eq!(add(&mut sum, f64::NAN), Err(Unusable::NotFinite));
        assert_eq!(add(&mut sum, f64::NEG_INFINITY), Err(Unusable::NotFinite));
        assert_eq!(add(&mut sum, 2f64.powi(54)), Err(Unusable::TooLarge));
        let most = 2f64.powi(54) - 2.0;
        assert_eq!(add_all(&mut [0, 0], &[most, -most]), Ok(()));
        let mut sum = 0;
        let added: Vec<_> = (0..3).map(|_| add(&mut sum, most)).collect();
        assert_eq!(added, [Ok(()), Ok(()), Err(Unusable::TooLarge)]);
    }
}
