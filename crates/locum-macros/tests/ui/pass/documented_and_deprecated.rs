//! Documentation and deprecation do not make the generated code warn.
#![deny(warnings, missing_docs)]
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

/// What the model is.
#[expert_substitution(crate = locum_substitution)]
#[deprecated(since = "0.1.0", note = "use another")]
#[derive(Clone)]
#[must_use]
pub struct Old {
    /// Where the layers are.
    #[substitution(layers)]
    #[deprecated]
    pub layers: Vec<Experts>,
}

mod hooks_of_old {
    #![allow(deprecated)]

    use super::*;

    hooks!(Old, 1);
}

#[allow(deprecated)]
fn main() {
    let layers = vec![Experts::of_layer(0)];
    let wrapped = SubstitutedOld::try_new(Old { layers }, &Default::default());
    assert!(wrapped.is_ok());
}
