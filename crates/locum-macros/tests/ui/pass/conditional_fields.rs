//! Fields, variants and marks under `cfg` and `cfg_attr`.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model {
    #[cfg_attr(all(), substitution(layers))]
    pub layers: Vec<Experts>,
    #[cfg(any())]
    #[substitution(layers)]
    pub removed: DoesNotExist,
    #[cfg(all())]
    #[substitution(layers)]
    pub kept: Mlp,
}

hooks!(Model, 2);

#[derive(Clone, locum_macros::MoeLayers)]
#[substitution(crate = locum_substitution)]
pub enum Mlp {
    #[cfg(any())]
    Removed(#[substitution(layers)] DoesNotExist),
    Sparse(#[substitution(layers)] Experts),
}

fn main() {
    let mut model = Model {
        layers: vec![Experts::of_layer(0)],
        kept: Mlp::Sparse(Experts::of_layer(1)),
    };
    assert_eq!(
        support::visited(&mut model),
        [("layers.0".to_owned(), 0), ("kept.Sparse".to_owned(), 1)]
    );
}
