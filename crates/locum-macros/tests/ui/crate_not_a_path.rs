use locum_macros::expert_substitution;

#[expert_substitution(crate = 3)]
struct Model {
    #[substitution(layers)]
    layers: Vec<u8>,
}

fn main() {}
