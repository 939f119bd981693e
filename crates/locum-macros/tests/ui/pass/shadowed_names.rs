//! Names of the prelude, and of what generated code uses, mean something else here.
#![allow(dead_code)]

#[path = "../../support/mod.rs"]
mod support;

mod shadowed {
    #![no_implicit_prelude]

    use crate::support::Experts;

    struct Result;
    struct Option;
    struct Vec;
    struct String;
    struct Some;
    struct Ok;
    struct None;
    trait Clone {}
    trait Deref {}
    trait Debug {}
    trait Display {}
    trait Iterator {}
    trait MoeLayers {}
    trait LoadWeights {}
    trait PipelineStage {}
    struct Substituted;
    struct SubstitutionSpec;
    struct SubstitutionError;
    struct ModulePath;
    mod core {}
    mod std {}
    mod alloc {}
    mod locum {}

    #[::locum_macros::expert_substitution(crate = ::locum_substitution)]
    #[derive(::core::clone::Clone)]
    pub struct Model<Target: ::core::clone::Clone> {
        #[substitution(layers)]
        pub layers: ::std::vec::Vec<Experts>,
        #[substitution(layers)]
        pub mlp: Mlp,
        pub other: Target,
    }

    #[::locum_macros::expert_substitution(crate = ::locum_substitution)]
    #[derive(::core::clone::Clone)]
    pub struct Plain {
        #[substitution(layers)]
        pub layers: ::std::vec::Vec<Experts>,
    }

    #[derive(::core::clone::Clone, ::locum_macros::MoeLayers)]
    #[substitution(crate = ::locum_substitution)]
    pub enum Mlp {
        Some(#[substitution(layers)] Experts),
        None(()),
    }

    crate::hooks!([Target: ::core::clone::Clone] Model<Target>, 1);
    crate::hooks!(Plain, 1);
}

fn main() {
    let spec = locum_substitution::SubstitutionSpec::default();
    let model = shadowed::Model {
        layers: Vec::new(),
        mlp: shadowed::Mlp::None(()),
        other: (),
    };
    assert!(shadowed::SubstitutedModel::try_new(model, &spec).is_ok());
    let model = shadowed::Plain { layers: Vec::new() };
    assert!(shadowed::SubstitutedPlain::try_new(model, &spec).is_ok());
}
