use locum_macros::expert_substitution;

#[expert_substitution(crate = locum_substitution)]
struct Model(#[substitution(layers)] Vec<u8>);

fn main() {}
