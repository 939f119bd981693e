use locum_macros::expert_substitution;

#[expert_substitution]
pub fn model() {}

fn calls() {
    model();
}

fn main() {}
