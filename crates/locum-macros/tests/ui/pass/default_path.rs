//! Without `crate`, generated code goes through `::locum`.
extern crate locum_substitution as locum;

#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    pub layers: Layers,
}

#[derive(Clone, locum_macros::MoeLayers)]
pub struct Layers {
    #[substitution(layers)]
    pub all: Vec<Experts>,
}

hooks!(Model, 1);

// A module of the same name does not get in the way.
mod inner {
    #[allow(dead_code)]
    mod locum {}

    use super::*;

    #[expert_substitution()]
    #[derive(Clone)]
    pub struct Inner {
        #[substitution(layers)]
        pub layers: Vec<Experts>,
    }

    hooks!(Inner, 1);
}

fn main() {
    let all = Vec::new();
    let model = Model {
        layers: Layers { all },
    };
    assert!(SubstitutedModel::try_new(model, &Default::default()).is_ok());
    let layers = Vec::new();
    let model = inner::Inner { layers };
    assert!(inner::SubstitutedInner::try_new(model, &Default::default()).is_ok());
}
