//! One call of `load_weights`: the stream is split, constants are staged, arrivals noted.

use std::collections::{BTreeSet, HashMap};
use std::iter::Fuse;

use super::convert::{convert, warn_of_nan};
use super::ledger::{Arrivals, LayerLedger, Ledger, Place, nothing_missing};
use crate::error::Listing;
use crate::name::{ExpertsName, canonical, ends_in_approx_value, expert_and_part};
use crate::{
    Constant, Loaded, NamedTensor, SkipRule, SubstitutionError, SubstitutionSpec, TensorInfo,
    WeightStream,
};

/// The constants that arrived, for each MoE layer of the visit.
type StagedConstants = Vec<Vec<Constant>>;

pub(super) struct Session<'a> {
    spec: &'a SubstitutionSpec,
    ledger: &'a Ledger,
    /// What this call brought, apart from earlier ones.
    arrivals: Vec<Arrivals>,
    constants: StagedConstants,
    /// Canonical name to the name that came.
    seen: HashMap<String, String>,
    loaded: Loaded,
}

/// Where a tensor goes.
enum Verdict {
    /// To the model's loader, with what its arrival means: a layer and indices of its weights.
    Pass(Option<(usize, Vec<usize>)>),
    /// To constants: pairs of layer and row, none of them where all are of other stages.
    Constant(Vec<(usize, usize)>),
    /// Nowhere.
    Skip(SkipRule),
}

impl<'a> Session<'a> {
    pub(super) fn new(spec: &'a SubstitutionSpec, ledger: &'a Ledger) -> Self {
        Self {
            spec,
            ledger,
            arrivals: ledger.layers.iter().map(|layer| layer.nothing()).collect(),
            constants: vec![Vec::new(); ledger.layers.len()],
            seen: HashMap::new(),
            loaded: Loaded::default(),
        }
    }

    /// Takes a tensor out of the stream, or gives it back for the model's loader.
    fn take(&mut self, tensor: NamedTensor) -> Result<Option<NamedTensor>, SubstitutionError> {
        match self.judge(tensor.info())? {
            Verdict::Pass(arrived) => {
                self.note(arrived);
                return Ok(Some(tensor));
            }
            Verdict::Skip(rule) => self.loaded.skip(rule),
            Verdict::Constant(rows) => self.stage(&tensor, rows)?,
        }
        Ok(None)
    }

    /// Takes what the model's loader did not read: constants, and nothing else.
    fn take_unread(&mut self, tensor: NamedTensor) -> Result<(), SubstitutionError> {
        match self.judge(tensor.info())? {
            Verdict::Pass(_) => self.loaded.skip(SkipRule::Unread),
            Verdict::Skip(rule) => self.loaded.skip(rule),
            Verdict::Constant(rows) => self.stage(&tensor, rows)?,
        }
        Ok(())
    }

    fn stage(
        &mut self,
        tensor: &NamedTensor,
        rows: Vec<(usize, usize)>,
    ) -> Result<(), SubstitutionError> {
        warn_of_nan(tensor);
        for (index, row) in rows {
            let layer = &self.ledger.layers[index];
            self.constants[index].push(Constant {
                row,
                expert: layer.table.substituted()[row],
                value: convert(tensor, &layer.info.constant_dtype)?,
            });
            self.arrivals[index].constants[row] = true;
        }
        Ok(())
    }

    /// Notes what a tensor's arrival would mean; whether the model's loader would get it.
    pub(super) fn admit(&mut self, info: &TensorInfo) -> Result<bool, SubstitutionError> {
        match self.judge(info)? {
            Verdict::Pass(arrived) => {
                self.note(arrived);
                Ok(true)
            }
            Verdict::Skip(_) => Ok(false),
            Verdict::Constant(rows) => {
                for (index, row) in rows {
                    self.arrivals[index].constants[row] = true;
                }
                Ok(false)
            }
        }
    }

    fn note(&mut self, arrived: Option<(usize, Vec<usize>)>) {
        if let Some((index, weights)) = arrived {
            for weight in weights {
                self.arrivals[index].weights[weight] = true;
            }
        }
    }

    fn judge(&mut self, info: &TensorInfo) -> Result<Verdict, SubstitutionError> {
        let name = canonical(&info.name);
        if let Some(first) = self
            .seen
            .insert(name.clone().into_owned(), info.name.clone())
        {
            return Err(SubstitutionError::DuplicateTensor {
                tensor: info.name.clone(),
                first,
            });
        }
        if let Some(experts) = self.spec.experts_of_value(&info.name) {
            let mut rows = Vec::new();
            for expert in experts {
                let Some(index) = self.ledger.declaring(expert.layer) else {
                    continue;
                };
                let substituted = self.ledger.layers[index].table.substituted();
                if let Ok(row) = substituted.binary_search(&expert.expert) {
                    self.check_constant(info, index, row)?;
                    rows.push((index, row));
                }
            }
            if rows.is_empty() {
                return Ok(Verdict::Skip(SkipRule::LayerOfAnotherStage));
            }
            return Ok(Verdict::Constant(rows));
        }
        let Some((index, below)) = self.ledger.locate(&name) else {
            return self.judge_elsewhere(info, &name);
        };
        let Some((expert, part)) = expert_and_part(below) else {
            return Ok(Verdict::Pass(None));
        };
        let layer = &self.ledger.layers[index];
        Ok(match layer.place(expert, part) {
            Place::Constant(row) => {
                self.check_constant(info, index, row)?;
                Verdict::Constant(vec![(index, row)])
            }
            Place::Undeclared(expert) => {
                return Err(SubstitutionError::UndeclaredConstant {
                    tensor: info.name.clone(),
                    layer: layer.info.layer,
                    expert,
                    declared: layer.table.substituted().to_vec(),
                });
            }
            Place::Leftover => Verdict::Skip(SkipRule::SubstitutedExpert),
            Place::Retained(weights) => {
                if expert.is_none() {
                    check_packed(info, layer)?;
                }
                self.check_once(info, index, &weights)?;
                Verdict::Pass(Some((index, weights)))
            }
            Place::Other => Verdict::Pass(None),
        })
    }

    /// A name of no experts that are built here, or not where the layer has its experts.
    fn judge_elsewhere(&self, info: &TensorInfo, name: &str) -> Result<Verdict, SubstitutionError> {
        if ends_in_approx_value(name)
            && let Some(experts) = ExpertsName::parse(name)
            && let Some(index) = self.ledger.declaring(experts.layer)
        {
            return Err(SubstitutionError::ConstantModule {
                tensor: info.name.clone(),
                layer: experts.layer,
                found: experts.module.to_owned(),
                expected: self.ledger.layers[index].info.prefix.clone(),
            });
        }
        Ok(Verdict::Pass(None))
    }

    /// That no tensor of another name brought these weights.
    fn check_once(
        &self,
        info: &TensorInfo,
        index: usize,
        weights: &[usize],
    ) -> Result<(), SubstitutionError> {
        let arrived = &self.arrivals[index].weights;
        let Some(&twice) = weights.iter().find(|&&weight| arrived[weight]) else {
            return Ok(());
        };
        let layer = &self.ledger.layers[index];
        let (expert, part) = layer.expert_and_part(twice);
        Err(SubstitutionError::ExpertTwice {
            tensor: info.name.clone(),
            layer: layer.info.layer,
            expert,
            part: part.to_owned(),
        })
    }

    /// A constant's type and shape, and that its expert has none yet.
    fn check_constant(
        &self,
        info: &TensorInfo,
        index: usize,
        row: usize,
    ) -> Result<(), SubstitutionError> {
        let layer = &self.ledger.layers[index];
        if !info.dtype.is_float() {
            return Err(SubstitutionError::Dtype {
                tensor: info.name.clone(),
                found: info.dtype.clone(),
            });
        }
        if info.shape != [layer.info.hidden_size] {
            return Err(SubstitutionError::Shape {
                tensor: info.name.clone(),
                expected: vec![layer.info.hidden_size],
                found: info.shape.clone(),
            });
        }
        if self.arrivals[index].constants[row] {
            return Err(SubstitutionError::ExpertTwice {
                tensor: info.name.clone(),
                layer: layer.info.layer,
                expert: layer.table.substituted()[row],
                part: "constant".into(),
            });
        }
        Ok(())
    }

    /// Everything that a whole checkpoint must bring was seen in this session.
    pub(super) fn nothing_missing(&self) -> Result<(), SubstitutionError> {
        nothing_missing(&self.ledger.layers, &self.arrivals, self.spec)
    }

    /// Ends the call: what was loaded, what has arrived in all, and the constants to hand over.
    pub(super) fn finish(
        self,
        inner: Loaded,
    ) -> Result<(Loaded, Vec<Arrivals>, StagedConstants), SubstitutionError> {
        let mut arrived = Vec::with_capacity(self.arrivals.len());
        for ((layer, before), now) in self
            .ledger
            .layers
            .iter()
            .zip(&self.ledger.arrivals)
            .zip(&self.arrivals)
        {
            // What is there already may change with its whole layer only: half an old layer and
            // half a new one is no model.
            if self.ledger.complete && now.weights.contains(&true) {
                let mut missing = Listing::default();
                layer.list_missing_weights(now, &mut missing);
                layer.list_missing_constants(now, self.spec, &mut missing);
                if !missing.is_empty() {
                    return Err(SubstitutionError::PartialReload {
                        layer: layer.info.layer,
                        missing,
                    });
                }
            }
            arrived.push(Arrivals {
                weights: either(&before.weights, &now.weights),
                constants: either(&before.constants, &now.constants),
            });
        }

        let mut loaded = self.loaded;
        for (rule, count) in inner.skipped {
            *loaded.skipped.entry(rule).or_default() += count;
        }
        loaded.parameters = inner.parameters.map(|mut parameters: BTreeSet<String>| {
            let with_constants = self
                .ledger
                .layers
                .iter()
                .zip(&self.constants)
                .filter(|(_, constants)| !constants.is_empty());
            parameters.extend(with_constants.map(|(layer, _)| layer.constants_parameter.clone()));
            parameters
        });
        Ok((loaded, arrived, self.constants))
    }
}

fn either(a: &[bool], b: &[bool]) -> Vec<bool> {
    a.iter().zip(b).map(|(a, b)| *a || *b).collect()
}

/// That a packed tensor holds all experts, or the retained ones.
fn check_packed(info: &TensorInfo, layer: &LayerLedger) -> Result<(), SubstitutionError> {
    let (logical, retained) = (layer.table.num_logical(), layer.table.retained().len());
    if info
        .shape
        .first()
        .is_some_and(|&experts| experts == logical || experts == retained)
    {
        return Ok(());
    }
    Err(SubstitutionError::PackedExperts {
        tensor: info.name.clone(),
        layer: layer.info.layer,
        logical,
        retained,
        found: info.shape.clone(),
    })
}

/// The stream without its constants, as the model's loader sees it.
pub(super) struct Remaining<'s, 'a, 'w, 'i> {
    weights: Fuse<&'w mut WeightStream<'i>>,
    session: &'s mut Session<'a>,
    failed: Option<SubstitutionError>,
}

impl<'s, 'a, 'w, 'i> Remaining<'s, 'a, 'w, 'i> {
    pub(super) fn new(weights: &'w mut WeightStream<'i>, session: &'s mut Session<'a>) -> Self {
        Self {
            weights: weights.fuse(),
            session,
            failed: None,
        }
    }

    /// Drains what the model's loader left, if all went well.
    ///
    /// Whatever the loader made of an error of ours or of the stream's, that error stands; an
    /// error of its own is not hidden behind what the rest of the stream may hold.
    pub(super) fn finish(
        self,
        inner: Result<Loaded, SubstitutionError>,
    ) -> Result<Loaded, SubstitutionError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let inner = inner?;
        for tensor in self.weights {
            self.session.take_unread(tensor?)?;
        }
        Ok(inner)
    }

    fn fail(&mut self, error: SubstitutionError) -> SubstitutionError {
        self.failed = Some(error);
        SubstitutionError::Stream("the stream of weights was refused".into())
    }
}

impl Iterator for Remaining<'_, '_, '_, '_> {
    type Item = Result<NamedTensor, SubstitutionError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.failed.is_none() {
            match self
                .weights
                .next()?
                .and_then(|tensor| self.session.take(tensor))
            {
                Ok(Some(tensor)) => return Some(Ok(tensor)),
                Ok(None) => {}
                Err(error) => return Some(Err(self.fail(error))),
            }
        }
        None
    }
}
