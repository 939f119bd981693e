//! The wrapper is as visible as the model, and lints about reach and use are quiet.
#![deny(dead_code, private_bounds, private_interfaces, unreachable_pub)]
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

mod inner {
    use super::*;

    #[expert_substitution(crate = locum_substitution)]
    #[derive(Clone)]
    pub(crate) struct OfTheCrate {
        #[substitution(layers)]
        pub(crate) layers: Vec<Experts>,
    }

    hooks!(OfTheCrate, 1);

    #[expert_substitution(crate = locum_substitution)]
    #[derive(Clone)]
    pub(super) struct OfTheParent {
        #[substitution(layers)]
        pub(super) layers: Vec<Experts>,
    }

    hooks!(OfTheParent, 1);

    pub(crate) mod deeper {
        use super::*;

        #[expert_substitution(crate = locum_substitution)]
        #[derive(Clone)]
        pub(in crate::inner) struct InPath {
            #[substitution(layers)]
            pub(in crate::inner) layers: Vec<Experts>,
        }

        hooks!(InPath, 1);
    }

    // A field's private type in a public model.
    #[derive(Clone, locum_macros::MoeLayers)]
    #[substitution(crate = locum_substitution)]
    struct Hidden<L> {
        #[substitution(layers)]
        layers: Vec<L>,
    }

    #[expert_substitution(crate = locum_substitution)]
    #[derive(Clone)]
    pub(crate) struct Open<L> {
        #[substitution(layers)]
        hidden: Hidden<L>,
    }

    hooks!([L] Open<L>, 1);

    impl<L> Open<L> {
        pub(crate) fn new(layers: Vec<L>) -> Self {
            Self {
                hidden: Hidden { layers },
            }
        }
    }

    pub(super) fn in_path() -> usize {
        let model = deeper::InPath { layers: Vec::new() };
        match deeper::SubstitutedInPath::try_new(model, &Default::default()) {
            Ok(wrapped) => wrapped.layers.len(),
            Err(_) => 1,
        }
    }
}

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
struct Private {
    #[substitution(layers)]
    layers: Vec<Experts>,
}

hooks!(Private, 1);

fn main() -> Result<(), locum_substitution::SubstitutionError> {
    let spec = locum_substitution::SubstitutionSpec::default();
    let layers = Vec::new();
    let model = inner::OfTheCrate { layers };
    assert!(inner::SubstitutedOfTheCrate::try_new(model, &spec)?.layers.is_empty());
    let layers = Vec::new();
    let model = inner::OfTheParent { layers };
    assert!(inner::SubstitutedOfTheParent::try_new(model, &spec)?.layers.is_empty());
    let layers = Vec::new();
    assert!(SubstitutedPrivate::try_new(Private { layers }, &spec)?.layers.is_empty());
    let model = inner::Open::<Experts>::new(Vec::new());
    assert!(inner::SubstitutedOpen::try_new(model, &spec)?.spec().is_empty());
    assert_eq!(inner::in_path(), 0);
    Ok(())
}
