use locum_macros::expert_substitution;

#[expert_substitution(name = First, crate = locum_substitution, name = Second)]
struct Model {
    #[substitution(layers)]
    layers: Vec<u8>,
}

type Wrapped = First;

fn main() {}
