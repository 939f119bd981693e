use locum_macros::MoeLayers;

#[derive(MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Layers {
    layers: Vec<u8>,
}

fn holds<T: locum_substitution::MoeLayers>() {}

// The impl is there all the same.
fn holds_layers() {
    holds::<Layers>();
}

fn main() {}
