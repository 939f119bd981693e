use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Layers;

fn main() {}
