use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(krate = locum_substitution, crate = locum_substitution)]
struct Layers {
    #[substitution(layers)]
    layers: Vec<u8>,
}

fn main() {}
