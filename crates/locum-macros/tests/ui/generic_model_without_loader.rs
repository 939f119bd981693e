#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;
use locum_substitution::{LoadWeights, SubstitutionSpec};

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model<T> {
    #[substitution(layers)]
    layers: Vec<Experts>,
    other: T,
}

impl<T> locum_substitution::PipelineStage for Model<T> {
    fn stage(&self) -> locum_substitution::Stage {
        locum_substitution::Stage::whole(1)
    }
}

fn loads<T: LoadWeights>(_: T) {}

// With a type parameter the model is asked where its wrapper is used.
fn used(model: Model<u8>) {
    if let Ok(wrapped) = SubstitutedModel::try_new(model, &SubstitutionSpec::default()) {
        loads(wrapped);
    }
}

fn main() {}
