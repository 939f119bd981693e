use locum_macros::MoeLayers;

struct Dense;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Block {
    #[substitution(layers)]
    mlp: Dense,
}

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Layers {
    #[substitution(layers)]
    blocks: Vec<Option<Dense>>,
}

fn main() {}
