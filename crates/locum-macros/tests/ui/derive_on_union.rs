use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
union Layers {
    #[substitution(layers)]
    layers: u8,
}

fn main() {}
