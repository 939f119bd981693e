use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
enum Mlp {
    Sparse(#[substitution(layers)] Vec<u8>, f32),
}

fn main() {}
