#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;
use locum_substitution::{
    LoadWeights, Loaded, PipelineStage, Stage, SubstitutionError, WeightStream,
};

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    layers: Vec<Experts>,
}

impl PipelineStage for Model {
    fn stage(&self) -> Stage {
        Stage::whole(1)
    }
}

impl LoadWeights for Model {
    fn load_weights(&mut self, _: &mut WeightStream<'_>) -> Result<Loaded, SubstitutionError> {
        Ok(Loaded::default())
    }
}

fn main() {}
