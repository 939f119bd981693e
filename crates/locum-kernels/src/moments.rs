//! Sums of vectors in `f64`, for statistics.

/// Channels that are summed side by side.
const LANES: usize = 8;

/// Vectors that are added while a channel's sums are in registers.
const TOGETHER: usize = 4;

/// Sums of vectors and of their multiples, by channel, and what is known of each vector.
#[derive(Debug)]
pub struct Moments<'a> {
    /// `Σ y`
    pub sums: &'a mut [f64],
    /// `Σ factor · y`
    pub weighted_sums: &'a mut [f64],
    /// `‖y‖²` of each, which takes the place of what is there.
    pub squared_norms: &'a mut [f64],
}

/// Adds vectors one after the other; each sum in the same order on every machine.
#[inline(always)]
pub(crate) fn add(moments: Moments<'_>, factors: &[f64], vectors: &[f32]) {
    let Moments {
        sums,
        weighted_sums,
        squared_norms,
    } = moments;
    let stride = vectors.len().checked_div(factors.len()).unwrap_or(0);
    let channels = stride.min(sums.len()).min(weighted_sums.len());
    let (sums, weighted_sums) = (&mut sums[..channels], &mut weighted_sums[..channels]);
    let count = factors.len().min(squared_norms.len());
    let row = |index: usize| &vectors[index * stride..][..channels];
    let (fours, rest) = factors[..count].as_chunks::<TOGETHER>();
    for (four, factors) in fours.iter().enumerate() {
        let first = four * TOGETHER;
        let rows = std::array::from_fn(|index| row(first + index));
        let norms = add_some(sums, weighted_sums, factors, rows);
        squared_norms[first..first + TOGETHER].copy_from_slice(&norms);
    }
    for (index, &factor) in (fours.len() * TOGETHER..).zip(rest) {
        [squared_norms[index]] = add_some(sums, weighted_sums, &[factor], [row(index)]);
    }
}

/// Gives the squared norms.
#[inline(always)]
fn add_some<const N: usize>(
    sums: &mut [f64],
    weighted_sums: &mut [f64],
    factors: &[f64; N],
    rows: [&[f32]; N],
) -> [f64; N] {
    let (chunks, rest) = sums.as_chunks_mut::<LANES>();
    let (weighted, rest_of_weighted) = weighted_sums.as_chunks_mut::<LANES>();
    let rows = rows.map(|row| row.as_chunks::<LANES>());
    let whole = rows.map(|(chunks, _)| chunks);
    let mut squares = [[0.0f64; LANES]; N];
    for (index, (sums, weighted)) in chunks.iter_mut().zip(weighted).enumerate() {
        // In registers while vectors are added.
        let (mut of_sums, mut of_weighted) = (*sums, *weighted);
        for row in 0..N {
            let y = whole[row][index].map(f64::from);
            for lane in 0..LANES {
                of_sums[lane] += y[lane];
            }
            for lane in 0..LANES {
                of_weighted[lane] += factors[row] * y[lane];
            }
            for lane in 0..LANES {
                squares[row][lane] += y[lane] * y[lane];
            }
        }
        (*sums, *weighted) = (of_sums, of_weighted);
    }
    for (lane, (sum, weighted)) in rest.iter_mut().zip(rest_of_weighted).enumerate() {
        for row in 0..N {
            let y = f64::from(rows[row].1[lane]);
            *sum += y;
            *weighted += factors[row] * y;
            squares[row][lane] += y * y;
        }
    }
    squares.map(|squares| squares.iter().sum())
}
