//! Any order, any sharding, and the check beforehand: all come to the same.

mod common;

use common::{
    Model, approximate, bf16, checkpoint, constant, expert, explicit, load, packed, part, target,
    tensor,
};
use locum_substitution::{
    Dtype, LoadWeights, NamedTensor, ProcessWeightsAfterLoading, Substituted, SubstitutionError,
    SubstitutionSpec, TensorInfo,
};
use proptest::prelude::*;
use serde_json::json;

/// Both formats at their fullest: leftovers, packed tensors, named and unnamed constants.
fn stored() -> Vec<(SubstitutionSpec, Vec<NamedTensor>)> {
    let leftovers = [checkpoint(&[2], &[1, 3]), expert(1, 3)].concat();
    let mut mixed = checkpoint(&[2], &[1, 3]);
    mixed.retain(|t| !t.name().contains("layers.1.") && !t.name().contains(".approx_value"));
    mixed.extend(packed(1, &[0, 1, 2, 3, 4]));
    mixed.extend([constant(1, 1), tensor("shared", &[2], &[1.0, 2.0])]);
    let named = explicit(json!({
        "model.layers.0.mlp.experts": target(&[(2, "shared")]),
        "model.layers.1.mlp.experts": target(&[(3, "shared"), (1, "never.there")]),
    }));
    vec![
        (approximate(json!({ "0": [2], "1": [3, 1] })), leftovers),
        (
            SubstitutionSpec::from_config(&named).expect("well-formed"),
            mixed,
        ),
    ]
}

/// A format, its stream, and the same stream shuffled and cut somewhere.
type Shuffled = (
    SubstitutionSpec,
    Vec<NamedTensor>,
    Vec<NamedTensor>,
    Vec<usize>,
);

fn shuffled() -> impl Strategy<Value = Shuffled> {
    prop::sample::select(stored()).prop_flat_map(|(spec, tensors)| {
        let cuts = prop::collection::vec(0..=tensors.len(), 0..6).prop_map(|mut cuts| {
            cuts.sort_unstable();
            cuts
        });
        (
            Just(spec),
            Just(tensors.clone()),
            Just(tensors).prop_shuffle(),
            cuts,
        )
    })
}

proptest! {
    #![proptest_config(common::cases(64))]

    #[test]
    fn order_and_sharding_of_a_stream_do_not_matter(
        (spec, in_order, shuffled, cuts) in shuffled(),
    ) {
        let mut expected = Substituted::try_new(Model::whole(), &spec)?;
        load(&mut expected, in_order)?;
        expected.process_weights_after_loading()?;

        let mut at_once = Substituted::try_new(Model::whole(), &spec)?;
        load(&mut at_once, shuffled.clone())?;
        at_once.process_weights_after_loading()?;
        prop_assert_eq!(&*at_once, &*expected);

        let mut sharded = Substituted::try_new(Model::whole(), &spec)?;
        let mut start = 0;
        for end in cuts.into_iter().chain([shuffled.len()]) {
            load(&mut sharded, shuffled[start..end].to_vec())?;
            start = end;
        }
        sharded.process_weights_after_loading()?;
        prop_assert_eq!(&*sharded, &*expected);
    }
}

/// One thing that may be wrong, or only unusual, with a checkpoint.
#[derive(Clone, Debug)]
enum Change {
    Drop(usize),
    Repeat(usize),
    Rename(usize, &'static str, &'static str),
    Reshape(usize),
    Retype(usize),
    Add(NamedTensor),
}

fn change() -> impl Strategy<Value = Change> {
    let odd = |end: &str, shape: &[usize]| {
        let values = vec![0.0; shape.iter().product()];
        tensor(&format!("model.layers.{end}"), shape, &values)
    };
    let mut additions = vec![
        constant(1, 4),
        constant(0, 0),
        constant(3, 1),
        part(1, 3, 0),
        part(3, 0, 0),
        part(0, 9, 0),
        tensor("shared", &[2], &[0.0; 2]),
        tensor("never.there", &[2], &[0.0; 2]),
        tensor("stranger", &[1], &[0.0]),
        bf16("model.norm.weight", &[0.0; 2]),
        odd("1.mlp.experts.007.approx_value", &[2]),
        odd("1.mlp.experts.4294967296.up_proj.weight", &[3, 2]),
        odd("1.ffn.experts.3.approx_value", &[2]),
        odd("0.self_attn.rotary_emb.inv_freq", &[2]),
        odd("1.mlp.experts.gate_up_proj", &[4, 6, 2]),
        odd("4.mlp.experts.0.up_proj.weight", &[3, 2]),
    ];
    additions.extend(packed(1, &[0, 2, 4]));
    let index = 0usize..29;
    prop_oneof![
        2 => index.clone().prop_map(Change::Drop),
        1 => index.clone().prop_map(Change::Repeat),
        1 => (index.clone(), prop::sample::select(vec![
            ("model.", "model.language_model."),
            ("model.", "language_model.model."),
            ("model.layers.", "layers."),
            ("model.", "mtp."),
            ("layers.1.", "layers.0."),
            ("experts.", "experts.0"),
        ])).prop_map(|(index, (from, to))| Change::Rename(index, from, to)),
        1 => index.clone().prop_map(Change::Reshape),
        1 => index.prop_map(Change::Retype),
        2 => prop::sample::select(additions).prop_map(Change::Add),
    ]
}

impl Change {
    fn apply(self, tensors: &mut Vec<NamedTensor>) {
        let at = |index: usize| index % tensors.len();
        let with = |tensor: &NamedTensor, edit: &dyn Fn(&mut TensorInfo)| {
            let (mut info, bytes) = tensor.clone().into_parts();
            edit(&mut info);
            NamedTensor::new(info, bytes).expect("as many bytes as before")
        };
        match self {
            Self::Drop(index) => drop(tensors.remove(at(index))),
            Self::Repeat(index) => tensors.push(tensors[at(index)].clone()),
            Self::Rename(index, from, to) => {
                let index = at(index);
                tensors[index] = with(&tensors[index], &|info| {
                    info.name = info.name.replacen(from, to, 1);
                });
            }
            Self::Reshape(index) => {
                let index = at(index);
                tensors[index] = with(&tensors[index], &|info| info.shape.push(1));
            }
            Self::Retype(index) => {
                let index = at(index);
                tensors[index] = with(&tensors[index], &|info| {
                    info.dtype = Dtype::Other("I8".into());
                });
            }
            Self::Add(tensor) => tensors.push(tensor),
        }
    }
}

fn verdict(result: Result<(), SubstitutionError>) -> String {
    result.map_or_else(|error| error.to_string(), |()| "accepted".into())
}

proptest! {
    #![proptest_config(common::cases(1024))]

    #[test]
    fn check_beforehand_says_what_loading_would(
        which in 0usize..2,
        changes in prop::collection::vec(change(), 0..4),
        built in prop::sample::select(vec![0..3, 0..1, 1..3, 3..4, 0..4]),
    ) {
        let (spec, mut tensors) = stored().swap_remove(which);
        for change in changes {
            change.apply(&mut tensors);
        }
        let mut model = Substituted::try_new(Model::stage(built), &spec)?;
        let mut infos = tensors.iter().map(|t| t.info().clone());
        let checked = verdict(model.check_weights(&mut infos));
        let loaded = load(&mut model, tensors)
            .and_then(|_| model.process_weights_after_loading());
        prop_assert_eq!(checked, verdict(loaded));
    }
}

#[test]
fn check_accepts_what_loads_and_changes_nothing() {
    for (spec, tensors) in stored() {
        let model = Substituted::try_new(Model::whole(), &spec).expect("fits");
        let before = (*model).clone();
        let mut infos = tensors.iter().map(|t| t.info().clone());
        assert_eq!(verdict(model.check_weights(&mut infos)), "accepted");
        assert_eq!(*model, before);
    }
}

#[test]
fn check_looks_at_what_the_model_does_not_ask_for() {
    // A model that does not know beforehand reads nothing, and the constants are still judged.
    let (spec, mut tensors) = stored().swap_remove(0);
    let model = Substituted::try_new(Unknowing(Model::whole()), &spec).expect("fits");
    let infos = |tensors: &[NamedTensor]| -> Vec<TensorInfo> {
        tensors.iter().map(|t| t.info().clone()).collect()
    };
    assert_eq!(
        verdict(model.check_weights(&mut infos(&tensors).into_iter())),
        "accepted"
    );
    let dropped = tensors.remove(3);
    assert!(
        verdict(model.check_weights(&mut infos(&tensors).into_iter())).contains(dropped.name())
    );
}

/// The model, with the check that every loader has by default.
#[derive(Clone)]
struct Unknowing(Model);

impl LoadWeights for Unknowing {
    fn load_weights(
        &mut self,
        weights: &mut locum_substitution::WeightStream<'_>,
    ) -> Result<locum_substitution::Loaded, SubstitutionError> {
        self.0.load_weights(weights)
    }
}

impl locum_substitution::MoeLayers for Unknowing {
    fn visit_moe_layers(
        &mut self,
        path: &mut locum_substitution::ModulePath,
        visit: &mut locum_substitution::MoeLayerVisitor<'_>,
    ) {
        self.0.visit_moe_layers(path, visit);
    }
}

impl locum_substitution::PipelineStage for Unknowing {
    fn stage(&self) -> locum_substitution::Stage {
        self.0.stage()
    }
}
