//! `Substituted<M>`: a model and what its checkpoint declares about it.

#[cfg(feature = "burn")]
mod burn;
mod convert;
mod declare;
mod ledger;
mod session;

use std::ops::Deref;

use crate::{
    LoadWeights, Loaded, MoeLayerInfo, MoeLayers, PipelineStage, ProcessWeightsAfterLoading,
    RouteTable, SubstitutionError, SubstitutionSpec, TensorInfo, WeightStream,
};
use ledger::Ledger;
use session::{Remaining, Session};

/// A model some of whose experts are constants.
///
/// It holds the model and what was declared, takes the constants out of the stream at the
/// [`load_weights`](LoadWeights::load_weights) boundary, and checks afterwards that none, and no
/// part of a retained expert, is missing. The type that `#[expert_substitution]` generates is a
/// newtype around it.
///
/// The model is reached through [`Deref`] only: a `&mut` to it would let its own `load_weights` be
/// called, past the constants.
///
/// # Loading is all or nothing
///
/// A call loads into a clone of the model (parameters are reference-counted) and swaps it in when
/// the stream ended without error; an error or a panic leaves the model as it was. Without any
/// substitution calls go straight to the model.
///
/// Calls accumulate until everything has arrived for the first time. From then on a layer takes
/// constants one by one, but retained experts only all together, with all its constants.
#[derive(Clone, Debug)]
pub struct Substituted<M> {
    model: M,
    spec: SubstitutionSpec,
    ledger: Ledger,
}

impl<M: MoeLayers + PipelineStage> Substituted<M> {
    /// Makes the declared experts of a model constants, before any weight is loaded.
    ///
    /// Layers that another stage builds are left to it.
    ///
    /// # Errors
    ///
    /// A declaration that does not fit the model: a layer beyond its last or without experts, an
    /// expert that does not exist, no retained expert left, a module or a number of experts other
    /// than the model's.
    pub fn try_new(mut model: M, spec: &SubstitutionSpec) -> Result<Self, SubstitutionError> {
        let ledger = declare::declare(&mut model, spec)?;
        Ok(Self {
            model,
            spec: spec.clone(),
            ledger,
        })
    }
}

impl<M> Substituted<M> {
    /// What was declared.
    #[must_use]
    pub fn spec(&self) -> &SubstitutionSpec {
        &self.spec
    }

    /// The MoE layers that are built here, with their routes.
    pub fn moe_layers(&self) -> impl Iterator<Item = (&MoeLayerInfo, &RouteTable)> {
        self.ledger
            .layers
            .iter()
            .map(|layer| (&layer.info, &layer.table))
    }

    /// Gives the model back, constants and all.
    #[must_use]
    pub fn into_inner(self) -> M {
        self.model
    }

    fn substitutes(&self) -> bool {
        !self.spec.is_empty()
    }
}

impl<M> Deref for Substituted<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.model
    }
}

impl<M: LoadWeights + MoeLayers + Clone> LoadWeights for Substituted<M> {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        if !self.substitutes() {
            return self.model.load_weights(weights);
        }
        let mut candidate = self.model.clone();
        let mut session = Session::new(&self.spec, &self.ledger);
        let mut remaining = Remaining::new(weights, &mut session);
        let inner = candidate.load_weights(&mut remaining);
        let inner = remaining.finish(inner)?;
        let (loaded, arrivals, constants) = session.finish(inner)?;

        let mut layer = 0;
        let mut result = Ok(());
        candidate.visit_moe_layers(&mut Default::default(), &mut |_, experts| {
            let arrived = &constants[layer];
            layer += 1;
            if result.is_ok() && !arrived.is_empty() {
                result = experts
                    .load_constants(arrived)
                    .map_err(SubstitutionError::model);
            }
        });
        result?;

        self.model = candidate;
        self.ledger.commit(arrivals, &loaded);
        Ok(loaded)
    }

    fn check_weights(
        &self,
        tensors: &mut dyn Iterator<Item = TensorInfo>,
    ) -> Result<(), SubstitutionError> {
        if !self.substitutes() {
            return self.model.check_weights(tensors);
        }
        let mut session = Session::new(&self.spec, &self.ledger);
        let mut tensors = tensors.fuse();
        let mut failed = None;
        let inner = self.model.check_weights(&mut std::iter::from_fn(|| {
            while failed.is_none() {
                let info = tensors.next()?;
                match session.admit(&info) {
                    Ok(true) => return Some(info),
                    Ok(false) => {}
                    Err(error) => failed = Some(error),
                }
            }
            None
        }));
        if let Some(error) = failed {
            return Err(error);
        }
        inner?;
        // A loader that accepts everything reads nothing: what it left is looked at all the same.
        for info in tensors {
            session.admit(&info)?;
        }
        session.nothing_missing()
    }
}

impl<M: ProcessWeightsAfterLoading> ProcessWeightsAfterLoading for Substituted<M> {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        if self.substitutes() {
            self.ledger.nothing_missing(&self.spec)?;
            self.ledger.report_leftovers();
        }
        self.model.process_weights_after_loading()
    }
}
