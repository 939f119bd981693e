//! Type, lifetime and const parameters with bounds, defaults and where-clauses.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::expert_substitution;
use support::Experts;

use locum_substitution::{LoadWeights, MoeLayers, SubstitutionError, SubstitutionSpec};

pub trait Activation {}

#[derive(Clone, Debug)]
pub struct Silu;

impl Activation for Silu {}

/// A parameter with a bound and a default, and one with neither.
#[expert_substitution(crate = locum_substitution)]
#[derive(Clone, Debug)]
pub struct Typed<A: Activation, T = u8>
where
    T: Copy + Default,
{
    #[substitution(layers)]
    pub layers: Vec<Experts>,
    pub activation: A,
    pub other: T,
}

hooks!([A: Activation, T: Copy + Default] Typed<A, T>, 1);

/// The layers themselves are a parameter.
#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Layered<L> {
    #[substitution(layers)]
    pub layers: Vec<L>,
}

hooks!([L] Layered<L>, 1);

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Sized<const HIDDEN: usize, const LAYERS: usize = 1> {
    #[substitution(layers)]
    pub layers: [Experts; LAYERS],
    pub hidden: [f32; HIDDEN],
}

hooks!([const HIDDEN: usize, const LAYERS: usize] Sized<HIDDEN, LAYERS>, 1);

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Named<'a> {
    #[substitution(layers)]
    pub layers: Vec<Experts>,
    pub name: &'a str,
}

hooks!(['a] Named<'a>, 1);

// A nested holder whose layers depend on a parameter.
#[derive(Clone, locum_macros::MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct Stack<L, const N: usize> {
    #[substitution(layers)]
    pub layers: [L; N],
}

#[expert_substitution(crate = locum_substitution)]
#[derive(Clone)]
pub struct Nested<L: Clone> {
    #[substitution(layers)]
    pub stack: Stack<L, 2>,
}

hooks!([L: Clone] Nested<L>, 2);

// What a generic caller may rely on.
fn wrap<L: MoeLayers>(layers: Vec<L>) -> Result<SubstitutedLayered<L>, SubstitutionError> {
    SubstitutedLayered::try_new(Layered { layers }, &SubstitutionSpec::default())
}

fn loads<T: LoadWeights + Clone>(_: &T) {}

fn main() -> Result<(), SubstitutionError> {
    let spec = SubstitutionSpec::default();
    let layers = vec![Experts::of_layer(0)];
    let typed: SubstitutedTyped<Silu> = SubstitutedTyped::try_new(
        Typed {
            layers: layers.clone(),
            activation: Silu,
            other: 3,
        },
        &spec,
    )?;
    loads(&typed);
    assert!(format!("{typed:?}").starts_with("SubstitutedTyped"));
    loads(&wrap(layers.clone())?);
    let sized: SubstitutedSized<2> = SubstitutedSized::try_new(
        Sized {
            layers: [Experts::of_layer(0)],
            hidden: [0.5, 1.5],
        },
        &spec,
    )?;
    loads(&sized);
    assert_eq!(sized.hidden, [0.5, 1.5]);
    let name = String::from("borrowed");
    let named = SubstitutedNamed::try_new(
        Named {
            layers,
            name: &name,
        },
        &spec,
    )?;
    loads(&named);
    assert_eq!(named.name, "borrowed");
    let stack = Stack {
        layers: [Experts::of_layer(0), Experts::of_layer(1)],
    };
    let mut nested = Nested { stack };
    assert_eq!(
        support::visited(&mut nested),
        [
            ("stack.layers.0".to_owned(), 0),
            ("stack.layers.1".to_owned(), 1)
        ]
    );
    loads(&SubstitutedNested::try_new(nested, &spec)?);
    Ok(())
}
