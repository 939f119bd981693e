//! Sums of vectors in `f64`, for statistics.

/// Channels that are summed side by side.
const LANES: usize = 8;

/// Sums of vectors and of their multiples, by channel.
#[derive(Debug)]
pub struct Moments<'a> {
    /// `Σ y`
    pub sums: &'a mut [f64],
    /// `Σ factor · y`
    pub weighted_sums: &'a mut [f64],
}

/// Adds a vector, and gives `‖y‖²`; each sum in the same order on every machine.
#[inline(always)]
pub(crate) fn add(moments: Moments<'_>, factor: f64, y: &[f32]) -> f64 {
    let (sums, rest_of_sums) = moments.sums.as_chunks_mut::<LANES>();
    let (weighted, rest_of_weighted) = moments.weighted_sums.as_chunks_mut::<LANES>();
    let (chunks, rest) = y.as_chunks::<LANES>();
    let mut squares = [0.0f64; LANES];
    for ((y, sums), weighted) in chunks.iter().zip(sums).zip(weighted) {
        for lane in 0..LANES {
            let y = f64::from(y[lane]);
            sums[lane] += y;
            weighted[lane] += factor * y;
            squares[lane] += y * y;
        }
    }
    let rest = rest.iter().zip(rest_of_sums).zip(rest_of_weighted);
    for (lane, ((&y, sum), weighted)) in rest.enumerate() {
        let y = f64::from(y);
        *sum += y;
        *weighted += factor * y;
        squares[lane] += y * y;
    }
    squares.iter().sum()
}
