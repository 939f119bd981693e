use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Layers(#[substitution(layers)] Vec<u8>);

fn main() {}
