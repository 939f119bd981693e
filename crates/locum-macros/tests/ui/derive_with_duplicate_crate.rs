use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
#[substitution(crate = other)]
struct Layers {
    #[substitution(layers)]
    layers: Vec<u8>,
}

fn main() {}
