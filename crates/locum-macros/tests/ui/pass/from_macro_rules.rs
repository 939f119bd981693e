//! A model that a `macro_rules` macro writes, whose parts come as fragments.
#[path = "../../support/mod.rs"]
mod support;

use locum_macros::{MoeLayers, expert_substitution};
use support::Experts;

macro_rules! model {
    ($crate_path:path, $visibility:vis $model:ident<$parameter:ident>, $wrapper:ident, $layers:ty) => {
        #[expert_substitution(name = $wrapper, crate = $crate_path)]
        #[derive(Clone)]
        $visibility struct $model<$parameter> {
            #[substitution(layers)]
            layers: $layers,
            other: $parameter,
        }

        hooks!([$parameter] $model<$parameter>, 1);
    };
}

#[derive(Clone, MoeLayers)]
#[substitution(crate = locum_substitution)]
pub struct Holder<L> {
    #[substitution(layers)]
    held: L,
}

model!(locum_substitution, pub Public<T>, Wrapped, Vec<Experts>);
model!(::locum_substitution, Private<L>, AlsoWrapped, Option<Holder<L>>);

fn main() {
    let spec = Default::default();
    let layers = Vec::new();
    let model = Public { layers, other: 3_u8 };
    assert!(Wrapped::try_new(model, &spec).is_ok_and(|wrapped| wrapped.other == 3));
    let model = Private {
        layers: Some(Holder {
            held: Experts::of_layer(0),
        }),
        other: Experts::of_layer(9),
    };
    assert_eq!(
        support::visited(&mut model.clone()),
        [("layers.held".to_owned(), 0)]
    );
    assert!(AlsoWrapped::try_new(model, &spec).is_ok());
}
