#[path = "../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution(crate = locum_substitution)]
pub struct Model {
    #[substitution(layers)]
    layers: Vec<Experts>,
}

hooks!(Model, 1);

fn main() {}
