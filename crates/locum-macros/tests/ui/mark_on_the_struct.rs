use locum_macros::expert_substitution;

#[expert_substitution(crate = locum_substitution)]
#[substitution(layers)]
struct Model {
    layers: Vec<u8>,
}

fn main() {}
