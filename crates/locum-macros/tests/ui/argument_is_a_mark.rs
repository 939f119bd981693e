use locum_macros::expert_substitution;

#[expert_substitution(layers, crate = locum_substitution)]
struct Model {
    #[substitution(layers)]
    layers: Vec<u8>,
}

fn main() {}
