//! Raw identifiers, and a model within a function.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[allow(non_camel_case_types)]
#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct r#type {
    #[substitution(layers)]
    pub r#loop: Vec<Experts>,
}

hooks!(r#type, 1);

fn main() {
    let mut model = r#type {
        r#loop: vec![Experts::of_layer(0)],
    };
    assert_eq!(support::visited(&mut model), [("loop.0".to_owned(), 0)]);
    assert!(Substitutedtype::try_new(model, &Default::default()).is_ok());

    #[expert_substitution(crate = locum_substitution)]
    #[derive(Clone)]
    struct Local {
        #[substitution(layers)]
        layers: Vec<Experts>,
    }

    hooks!(Local, 1);

    let layers = Vec::new();
    let local = SubstitutedLocal::try_new(Local { layers }, &Default::default());
    assert!(local.is_ok_and(|local| local.layers.is_empty()));
}
