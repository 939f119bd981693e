//! Calibrations of fixtures.

use std::path::{Path, PathBuf};

use locum::models::{Model, ModelFiles};
use locum::prune::{Calibration, Selection, Sequences};

use crate::{Reference, fixture};

/// Windows of so many tokens.
#[must_use]
pub fn selection(length: usize, sequences: Option<usize>) -> Selection {
    Selection {
        length: Some(length),
        sequences,
        seed: None,
    }
}

/// The calibration text of the reference, on a model that has a tokenizer.
#[must_use]
pub fn of_text(directory: &Path, model: &Model, selection: Selection) -> Calibration {
    let files = ModelFiles::open(directory).unwrap();
    let texts = [fixture("mone/calib.txt")];
    let sequences = Sequences::read(&texts, &files, &model.limits(), selection).unwrap();
    Calibration::new(&files, model, sequences).unwrap()
}

/// The token ids of an architecture's fixture, in sequences of 20.
#[must_use]
pub fn of_fixture(name: &str, model: &Model) -> (Calibration, Vec<Vec<i64>>) {
    let base = format!("{}/base", name.split_once('/').unwrap().0);
    let ids = Reference::open(&fixture(&base)).rows("input_ids").concat();
    let sequences = Sequences::from_ids(&ids, &model.limits(), selection(20, None)).unwrap();
    let files = ModelFiles::open(fixture(name)).unwrap();
    let calibration = Calibration::new(&files, model, sequences).unwrap();
    let rows = ids.chunks_exact(20).map(<[i64]>::to_vec).collect();
    (calibration, rows)
}

/// Writes a calibration's statistics to a file.
#[must_use]
pub fn written(calibration: &Calibration, model: &Model, out: PathBuf) -> PathBuf {
    let run = calibration.start(model, &out).unwrap();
    run.finish(model, |_| {}).unwrap();
    out
}
