//! Statistics of parts, put together.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::file::{self, StatisticsFile};
use crate::save::Place;
use crate::statistics::Origin;
use crate::{PruneError, sums};

/// Puts the statistics of parts of a calibration together, layer by layer: what is written is the same, bit
/// by bit, in whatever parts and order, and that of all parts is what a calibration without parts writes.
///
/// # Errors
///
/// Files that cannot be read, that were not made in the same way, or that count a sequence twice; a
/// place that cannot be written to, that holds one of them or what is no statistics file, or that another
/// process writes to.
pub fn merge(parts: &[PathBuf], out: &Path) -> Result<Origin, PruneError> {
    let (first, rest) = parts.split_first().ok_or(PruneError::NothingToMerge)?;
    let place = Place::take(out, None, parts)?;
    let mut files = vec![StatisticsFile::open(first)?];
    let mut origin = files[0].origin().clone();
    let mut layers = files[0].layers().to_vec();
    for path in rest {
        let file = StatisticsFile::open(path)?;
        if let Some((what, first_value, second)) = origin.difference(file.origin()) {
            return Err(PruneError::Differ {
                paths: [first.clone(), path.clone()],
                what,
                first: first_value,
                second,
            });
        }
        origin.covered.extend_from_slice(&file.origin().covered);
        origin.covered = sums::join(&origin.covered).map_err(|sequences| PruneError::Overlap {
            path: path.clone(),
            sequences,
        })?;
        if layers.len() != file.layers().len() {
            return Err(PruneError::OtherLayers);
        }
        for (layer, other) in layers.iter_mut().zip(file.layers()) {
            layer.add(other)?;
        }
        files.push(file);
    }
    let sum = |place: usize| {
        let mut sum = files[0].layer(place)?;
        for file in &files[1..] {
            sum.add(&file.layer(place)?)?;
        }
        Ok(Cow::Owned(sum))
    };
    place.save(place.target(), true, |to| {
        file::write(&origin, None, &layers, sum, out, to)
    })?;
    Ok(origin)
}
