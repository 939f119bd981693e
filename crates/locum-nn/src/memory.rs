//! Memory for weights: filled once, by all cores, straight from a checkpoint's views.

use burn::tensor::{AllocationProperty, Bytes as BurnBytes};
use bytes::Bytes;
use memmap2::MmapMut;
use rayon::prelude::*;

/// What a core copies at a time.
const CHUNK: usize = 4 << 20;
/// From here on, weights get pages of their own: one huge page.
const LARGE: usize = 2 << 20;

/// Copies views, one after the other, into memory that a tensor can own. Each view is let go as soon
/// as it is copied.
pub(crate) fn gather(views: impl IntoIterator<Item = Bytes>) -> BurnBytes {
    let views: Vec<Bytes> = views.into_iter().collect();
    let length = views.iter().map(Bytes::len).sum();
    if length >= LARGE
        && let Ok(mut map) = MmapMut::map_anon(length)
    {
        // In small pages, most of the time would go to the system handing them out, and products
        // would miss addresses. A system that has no huge pages to give is none the worse.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        fill(&mut map, views);
        return BurnBytes::from_shared(Bytes::from_owner(map), AllocationProperty::Other);
    }
    let mut bytes = vec![0; length];
    fill(&mut bytes, views);
    BurnBytes::from_bytes_vec(bytes)
}

fn fill(mut rest: &mut [u8], views: Vec<Bytes>) {
    let mut copies = Vec::new();
    for mut view in views {
        while !view.is_empty() {
            let part = view.split_to(view.len().min(CHUNK));
            let (target, others) = rest.split_at_mut(part.len());
            copies.push((target, part));
            rest = others;
        }
    }
    copies
        .into_par_iter()
        .for_each(|(target, part)| target.copy_from_slice(&part));
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
            assert_eq!(gather(views)[..], expected[..]);
        }
    }
}
