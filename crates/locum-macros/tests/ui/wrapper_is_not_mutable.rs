#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    layers: Vec<Experts>,
}

hooks!(Model, 1);

// A `&mut Model` would load weights past the constants.
fn past_the_constants(wrapped: &mut SubstitutedModel) {
    wrapped.layers.clear();
}

fn main() {}
