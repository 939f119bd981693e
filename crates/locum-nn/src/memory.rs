//! Memory for weights: filled once, by all cores, straight from a checkpoint's files.

use burn::tensor::{AllocationProperty, Bytes as BurnBytes};
use bytes::Bytes;
use locum_substitution::{SubstitutionError, TensorBytes};
use memmap2::MmapMut;
use rayon::prelude::*;

/// What a core copies at a time.
const CHUNK: usize = 4 << 20;
/// From here on, weights get pages of their own: one huge page.
const LARGE: usize = 2 << 20;

/// Copies bytes, one after the other, into memory that a tensor can own. They are let go as soon as they
/// are copied.
///
/// # Errors
///
/// Those of [`TensorBytes::copy_to`].
pub(crate) fn gather(
    parts: impl IntoIterator<Item = TensorBytes>,
) -> Result<BurnBytes, SubstitutionError> {
    let parts: Vec<TensorBytes> = parts.into_iter().collect();
    let length = parts.iter().map(|part| part.len()).sum();
    if length >= LARGE
        && let Ok(mut map) = MmapMut::map_anon(length)
    {
        // In small pages, most of the time would go to the system handing them out, and products
        // would miss addresses. A system that has no huge pages to give is none the worse.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        fill(&mut map, parts)?;
        let map = Bytes::from_owner(map);
        return Ok(BurnBytes::from_shared(map, AllocationProperty::Other));
    }
    let mut bytes = vec![0; length];
    fill(&mut bytes, parts)?;
    Ok(BurnBytes::from_bytes_vec(bytes))
}

fn fill(mut rest: &mut [u8], parts: Vec<TensorBytes>) -> Result<(), SubstitutionError> {
    let mut copies = Vec::new();
    for part in parts {
        for start in (0..part.len()).step_by(CHUNK) {
            let part = part.slice(start..start + CHUNK);
            let (target, others) = rest.split_at_mut(part.len());
            copies.push((target, part));
            rest = others;
        }
    }
    copies
        .into_par_iter()
        .try_for_each(|(target, part)| part.copy_to(target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_follow_each_other_in_small_and_large_memory() {
        for lengths in [vec![], vec![3, 0, 5], vec![CHUNK + 7, 1, 2 * CHUNK, 13]] {
            let views: Vec<Bytes> = lengths
                .iter()
                .enumerate()
                .map(|(index, &length)| {
                    let byte = |i: usize| (i * 31 + i / 251 + index) as u8;
                    Bytes::from((0..length).map(byte).collect::<Vec<_>>())
                })
                .collect();
            let expected = views.concat();
            let gathered =
                gather(views.into_iter().map(TensorBytes::from)).expect("bytes in memory");
            assert_eq!(gathered[..], expected[..]);
        }
    }
}
