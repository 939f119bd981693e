#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;
use locum_substitution::{PipelineStage, ProcessWeightsAfterLoading, Stage, SubstitutionError};

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model<const N: usize> {
    #[substitution(layers)]
    layers: [Experts; N],
}

impl<const N: usize> PipelineStage for Model<N> {
    fn stage(&self) -> Stage {
        Stage::whole(1)
    }
}

impl<const N: usize> ProcessWeightsAfterLoading for Model<N> {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        Ok(())
    }
}

fn main() {}
