use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
enum Mlp {
    Sparse(Vec<u8>),
    Dense,
}

fn main() {}
