//! A dependency under another name, by every kind of path.
extern crate locum_substitution as renamed;

#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution(name = Wrapped, crate = renamed)]
#[derive(Clone)]
pub struct ByName {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(ByName, 1);

#[expert_substitution(crate = ::renamed,)]
#[derive(Clone)]
pub struct ByGlobalPath {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(ByGlobalPath, 1);

mod inner {
    use super::*;
    use renamed as again;

    #[expert_substitution(crate = self::again)]
    #[derive(Clone)]
    pub struct ByRelativePath {
        #[substitution(layers)]
        pub nested: Nested,
    }

    #[derive(Clone, locum_macros::MoeLayers)]
    #[substitution(crate = super::renamed)]
    pub struct Nested {
        #[substitution(layers)]
        pub layers: Vec<Experts>,
    }

    hooks!(ByRelativePath, 1);
}

fn main() {
    let spec = renamed::SubstitutionSpec::default();
    let layers = Vec::new();
    assert!(Wrapped::try_new(ByName { layers }, &spec).is_ok());
    let layers = Vec::new();
    assert!(SubstitutedByGlobalPath::try_new(ByGlobalPath { layers }, &spec).is_ok());
    let nested = inner::Nested { layers: Vec::new() };
    let model = inner::ByRelativePath { nested };
    assert!(inner::SubstitutedByRelativePath::try_new(model, &spec).is_ok());
}
