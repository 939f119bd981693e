//! The macros and what they name, both through a crate's own re-exports.
#[path = "../../support/mod.rs"]
mod support;

use support::Experts;

mod facade {
    pub use locum_macros::{MoeLayers, expert_substitution};
    pub use locum_substitution::{SubstitutionSpec, __private};
}

mod prelude {
    pub use super::facade::expert_substitution as substituted;
}

use prelude::*;

#[facade::expert_substitution(crate = crate::facade)]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    pub layers: Layers,
}

#[derive(Clone, facade::MoeLayers)]
#[substitution(crate = crate::facade)]
pub struct Layers {
    #[substitution(layers)]
    pub all: Vec<Experts>,
}

hooks!(Model, 1);

#[substituted(crate = facade)]
#[derive(Clone)]
pub struct Renamed {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(Renamed, 1);

fn main() {
    let all = Vec::new();
    let model = Model {
        layers: Layers { all },
    };
    assert!(SubstitutedModel::try_new(model, &facade::SubstitutionSpec::default()).is_ok());
    let layers = Vec::new();
    let model = Renamed { layers };
    assert!(SubstitutedRenamed::try_new(model, &facade::SubstitutionSpec::default()).is_ok());
}
