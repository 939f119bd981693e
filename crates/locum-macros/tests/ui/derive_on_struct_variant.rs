use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
enum Mlp {
    Sparse {
        #[substitution(layers)]
        layers: Vec<u8>,
    },
}

fn main() {}
