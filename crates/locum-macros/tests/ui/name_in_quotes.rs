use locum_macros::expert_substitution;

#[expert_substitution(name = "Wrapped", crate = locum_substitution)]
struct Model {
    #[substitution(layers)]
    layers: Vec<u8>,
}

type Alias = Wrapped;

fn main() {}
