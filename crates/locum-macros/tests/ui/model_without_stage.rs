#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;
use locum_substitution::{
    LoadWeights, Loaded, ProcessWeightsAfterLoading, SubstitutionError, WeightStream,
};

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    layers: Vec<Experts>,
}

impl LoadWeights for Model {
    fn load_weights(&mut self, _: &mut WeightStream<'_>) -> Result<Loaded, SubstitutionError> {
        Ok(Loaded::default())
    }
}

impl ProcessWeightsAfterLoading for Model {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        Ok(())
    }
}

fn main() {}
