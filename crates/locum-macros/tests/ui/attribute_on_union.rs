use locum_macros::expert_substitution;

#[expert_substitution(crate = locum_substitution)]
union Model {
    #[substitution(layers)]
    layers: u8,
}

fn main() {}
