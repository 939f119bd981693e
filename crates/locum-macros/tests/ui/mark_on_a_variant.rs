use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
enum Mlp {
    #[substitution(layers)]
    Sparse(Vec<u8>),
}

fn main() {}
