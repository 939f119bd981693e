//! Axes of pictures.

/// A step of 1, 2 or 5 times a power of ten that gives about five grid lines.
pub(crate) fn nice_step(range: f64) -> f64 {
    let rough = range / 5.0;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|step| step * power >= rough);
    step.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::nice_step;

    #[test]
    fn grid_steps_are_round() {
        for (range, step) in [(1.05, 0.5), (2.3, 0.5), (4.0, 1.0), (40.0, 10.0)] {
            assert!(
                (nice_step(range) - step).abs() < 1e-9,
                "{range}: {}",
                nice_step(range)
            );
        }
    }
}
