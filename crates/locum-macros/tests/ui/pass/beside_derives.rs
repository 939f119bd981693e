//! The attribute above, between and below derives.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone, Debug)]
pub struct Above {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(Above, 1);

#[derive(Clone, Debug)]
#[expert_substitution(crate = locum_substitution)]
pub struct Below {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(Below, 1);

#[derive(Clone)]
#[expert_substitution(crate = locum_substitution)]
#[derive(Debug)]
pub struct Between {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
}

hooks!(Between, 1);

fn main() -> Result<(), locum_substitution::SubstitutionError> {
    let spec = locum_substitution::SubstitutionSpec::default();
    let layers = || vec![Experts::of_layer(0)];
    let above = SubstitutedAbove::try_new(Above { layers: layers() }, &spec)?;
    let below = SubstitutedBelow::try_new(Below { layers: layers() }, &spec)?;
    let between = SubstitutedBetween::try_new(Between { layers: layers() }, &spec)?;
    assert_eq!(format!("{:?}", *above.clone()), format!("{:?}", *above));
    assert_eq!(below.clone().layers.len(), 1);
    assert_eq!(between.clone().layers.len(), 1);
    Ok(())
}
