//! Marks on everything that can hold layers, and several of them.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

use locum_macros::MoeLayers;

#[derive(Clone, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct Block {
    #[substitution(layers)]
    pub mlp: Mlp,
    pub norm: f32,
}

#[derive(Clone, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub enum Mlp {
    Dense(f32),
    Sparse(#[substitution(layers)] Experts),
    Shared(#[substitution(layers)] Shared),
    Nothing,
}

#[derive(Clone, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct Shared {
    #[substitution(layers)]
    pub experts: Experts,
    pub shared_expert: f32,
}

#[derive(Clone, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub enum AlwaysSparse {
    One(#[substitution(layers)] Experts),
}

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Model {
    #[substitution(layers)]
    pub blocks: Vec<Block>,
    pub embedding: f32,
    #[substitution(layers)]
    pub pair: [Experts; 2],
    #[substitution(layers)]
    pub mtp: Option<AlwaysSparse>,
    #[substitution(layers)]
    pub absent: Option<Vec<Experts>>,
    #[substitution(layers)]
    pub bare: Experts,
}

hooks!(Model, 6);

fn main() {
    let block = |mlp| Block { mlp, norm: 1.0 };
    let mut model = Model {
        blocks: vec![
            block(Mlp::Dense(0.0)),
            block(Mlp::Sparse(Experts::of_layer(1))),
            block(Mlp::Shared(Shared {
                experts: Experts::of_layer(2),
                shared_expert: 0.0,
            })),
            block(Mlp::Nothing),
        ],
        embedding: 0.0,
        pair: [Experts::of_layer(3), Experts::of_layer(4)],
        mtp: Some(AlwaysSparse::One(Experts::of_layer(5))),
        absent: None,
        bare: Experts::of_layer(6),
    };
    let visits = support::visited(&mut model);
    let visits: Vec<_> = visits.iter().map(|(path, layer)| (&path[..], *layer)).collect();
    assert_eq!(
        visits,
        [
            ("blocks.1.mlp.Sparse", 1),
            ("blocks.2.mlp.Shared.experts", 2),
            ("pair.0", 3),
            ("pair.1", 4),
            ("mtp.One", 5),
            ("bare", 6),
        ]
    );
}
