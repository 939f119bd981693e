use locum_macros::expert_substitution;

#[expert_substitution(crate = locum_substitution)]
enum Model {
    Sparse(#[substitution(layers)] Vec<u8>),
}

fn main() {}
