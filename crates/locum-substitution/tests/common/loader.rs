//! The model's own loader, in the ways in which real ones behave.

use locum_substitution::name::{LayerName, canonical, expert_and_part};
use locum_substitution::{
    Dtype, Listing, LoadWeights, Loaded, NamedTensor, ProcessWeightsAfterLoading, Route, SkipRule,
    SubstitutionError, TensorInfo, WeightStream,
};

use super::model::{Experts, Layer, Model, Values};

/// How the loader behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loader {
    /// Reports what it loaded.
    Normal,
    /// Loads everything, says nothing.
    ReportsNothing,
    /// Reads some tensors only.
    StopsAfter(usize),
    /// Fails by itself after some tensors.
    FailsAfter(usize),
    /// Panics after some tensors.
    PanicsAfter(usize),
    /// Takes an error of the stream for its end.
    SwallowsErrors,
    /// Asks the stream on after its end.
    AsksAgain,
    /// Keeps parts, from call to call, until an expert has all three.
    WaitsForWholeExperts,
}

/// Where a tensor belongs.
enum Fate {
    Norm,
    Dense(usize),
    /// Row and part.
    Expert(usize, usize, usize),
    /// Rows of the packed tensor, by row of the layer, and the parts in it.
    Packed(usize, Vec<usize>, &'static [usize]),
    Skip(SkipRule),
    Unexpected,
}

const SHAPES: [[usize; 2]; 3] = [[3, 2], [3, 2], [2, 3]];

impl Model {
    fn fate(&self, info: &TensorInfo) -> Result<Fate, SubstitutionError> {
        let name = canonical(&info.name);
        if name == "model.norm.weight" {
            return shaped(info, &[2]).map(|()| Fate::Norm);
        }
        if name.ends_with(".rotary_emb.inv_freq") {
            return Ok(Fate::Skip(SkipRule::RotaryBuffer));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            if let Layer::Moe(experts) = layer
                && let Some(rest) = name.strip_prefix(canonical(&experts.prefix).as_ref())
                && let Some(below) = rest.strip_prefix('.')
            {
                return experts.fate(index, info, below);
            }
        }
        let Some(LayerName { layer, rest }) = LayerName::parse(&name) else {
            return Ok(Fate::Unexpected);
        };
        if !self.built.contains(&layer) {
            return Ok(match layer {
                0..Self::DECODER => Fate::Skip(SkipRule::LayerOfAnotherStage),
                Self::DECODER..Self::TOTAL => Fate::Skip(SkipRule::MultiTokenPrediction),
                _ => Fate::Unexpected,
            });
        }
        let index = (layer - self.built.start) as usize;
        match (&self.layers[index], rest) {
            (Layer::Dense(_), "mlp.weight") => shaped(info, &[2]).map(|()| Fate::Dense(index)),
            _ => Ok(Fate::Unexpected),
        }
    }

    fn put(&mut self, fate: Fate, bytes: &[u8]) -> Option<String> {
        Some(match fate {
            Fate::Norm => {
                self.norm = Some(bytes.to_vec());
                "norm.weight".into()
            }
            Fate::Dense(index) => {
                self.layers[index] = Layer::Dense(Some(bytes.to_vec()));
                format!("layers.{index}.mlp.weight")
            }
            Fate::Expert(index, row, part) => {
                self.put_part(index, row, part, bytes.to_vec());
                self.path(index, part)
            }
            Fate::Packed(index, rows, parts) => {
                let packed_rows = rows.iter().max().map_or(0, |row| row + 1);
                let size = 24;
                assert!(bytes.len() >= packed_rows * parts.len() * size);
                for (row, packed) in rows.iter().enumerate() {
                    for (place, &part) in parts.iter().enumerate() {
                        let start = (packed * parts.len() + place) * size;
                        let value = bytes[start..start + size].to_vec();
                        self.put_part(index, row, part, value);
                    }
                }
                self.path(index, parts[0])
            }
            Fate::Skip(_) | Fate::Unexpected => return None,
        })
    }

    fn path(&self, index: usize, part: usize) -> String {
        let matrix = if part == 2 {
            "down_proj"
        } else {
            "gate_up_proj"
        };
        format!("layers.{index}.mlp.experts.{matrix}")
    }

    fn put_part(&mut self, index: usize, row: usize, part: usize, value: Values) {
        let waits = self.loader == Loader::WaitsForWholeExperts;
        if !waits {
            self.moe(index).rows[row][part] = Some(value);
            return;
        }
        let waiting = self.waiting.entry((index, row)).or_default();
        waiting[part] = Some(value);
        if waiting.iter().all(Option::is_some) {
            let whole = self.waiting.remove(&(index, row)).unwrap_or_default();
            self.moe(index).rows[row] = whole;
        }
    }

    fn moe(&mut self, index: usize) -> &mut Experts {
        match &mut self.layers[index] {
            Layer::Moe(experts) => experts,
            Layer::Dense(_) => panic!("layer {index} is dense"),
        }
    }
}

impl Experts {
    fn fate(
        &self,
        index: usize,
        info: &TensorInfo,
        below: &str,
    ) -> Result<Fate, SubstitutionError> {
        let Some((expert, part)) = expert_and_part(below) else {
            return Ok(Fate::Unexpected);
        };
        let Some(expert) = expert else {
            let (parts, dimensions): (&'static [usize], _) = match part {
                "gate_up_proj" => (&[0, 1], [6, 2]),
                "down_proj" => (&[2], [2, 3]),
                _ => return Ok(Fate::Unexpected),
            };
            let experts = info.shape.first().copied().unwrap_or(0);
            shaped(info, &[experts, dimensions[0], dimensions[1]])?;
            let rows = if experts == self.rows.len() {
                (0..experts).collect()
            } else {
                self.table
                    .retained()
                    .iter()
                    .map(|&id| id as usize)
                    .collect()
            };
            return Ok(Fate::Packed(index, rows, parts));
        };
        match (
            self.table.route(expert.into()),
            self.parts.iter().position(|p| *p == part),
        ) {
            (Route::Retained(row), Some(part)) => {
                shaped(info, &SHAPES[part]).map(|()| Fate::Expert(index, row as usize, part))
            }
            _ => Ok(Fate::Unexpected),
        }
    }
}

fn shaped(info: &TensorInfo, expected: &[usize]) -> Result<(), SubstitutionError> {
    if info.dtype != Dtype::F32 {
        return Err(SubstitutionError::Dtype {
            tensor: info.name.clone(),
            found: info.dtype.clone(),
        });
    }
    if info.shape != expected {
        return Err(SubstitutionError::Shape {
            tensor: info.name.clone(),
            expected: expected.to_vec(),
            found: info.shape.clone(),
        });
    }
    Ok(())
}

impl LoadWeights for Model {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        let mut loaded = Loaded::default();
        let mut parameters = std::collections::BTreeSet::new();
        let mut unexpected = Listing::default();
        let mut read = 0;
        loop {
            match self.loader {
                Loader::StopsAfter(count) if read == count => break,
                Loader::FailsAfter(count) if read == count => {
                    return Err(SubstitutionError::model(format!("failed after {count}")));
                }
                Loader::PanicsAfter(count) if read == count => panic!("panicked after {count}"),
                _ => {}
            }
            let tensor: NamedTensor = match weights.next() {
                Some(Ok(tensor)) => tensor,
                Some(Err(_)) if self.loader == Loader::SwallowsErrors => break,
                Some(Err(error)) => return Err(error),
                None => break,
            };
            read += 1;
            match self.fate(tensor.info())? {
                Fate::Skip(rule) => loaded.skip(rule),
                Fate::Unexpected => unexpected.push(|| tensor.name().to_owned()),
                fate => parameters.extend(self.put(fate, tensor.bytes())),
            }
        }
        if self.loader == Loader::AsksAgain {
            assert!(weights.next().is_none());
            assert!(weights.next().is_none());
        }
        unexpected.none_unexpected()?;
        loaded.parameters = (self.loader != Loader::ReportsNothing).then_some(parameters);
        Ok(loaded)
    }

    fn check_weights(
        &self,
        tensors: &mut dyn Iterator<Item = TensorInfo>,
    ) -> Result<(), SubstitutionError> {
        let mut unexpected = Listing::default();
        for info in tensors {
            if let Fate::Unexpected = self.fate(&info)? {
                unexpected.push(|| info.name.clone());
            }
        }
        unexpected.none_unexpected()
    }
}

impl ProcessWeightsAfterLoading for Model {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        self.processed += 1;
        Ok(())
    }
}
