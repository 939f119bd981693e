use locum_macros::expert_substitution;

struct Model;

#[expert_substitution]
impl Model {
    fn layers(&self) {}
}

fn main() {}
