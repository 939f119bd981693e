use locum_macros::expert_substitution;

#[expert_substitution(crate =)]
struct Model {
    #[substitution(layers)]
    layers: Vec<u8>,
}

// Nothing can be known of the wrapper but that it is there.
fn takes(_: Option<SubstitutedModel>) {}

fn main() {}
