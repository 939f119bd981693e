//! What the generated code does: which layers are visited, and what the wrapper forwards.

mod support;

use std::fmt;

use locum_macros::{MoeLayers, expert_substitution};
use locum_substitution::{
    ConfigFormat, LoadWeights, Loaded, NamedTensor, PipelineStage, ProcessWeightsAfterLoading,
    Stage, Substituted, SubstitutionError, SubstitutionSpec, TensorInfo, WeightStream,
};
use support::{Experts, visited};

#[derive(Clone, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
struct Block {
    #[substitution(layers)]
    mlp: Mlp,
}

#[derive(Clone, Debug, MoeLayers)]
#[substitution(crate = locum_substitution)]
enum Mlp {
    Dense(()),
    Sparse(#[substitution(layers)] Experts),
}

/// One dense layer, then one of experts; it counts calls of its hooks.
#[expert_substitution(crate = locum_substitution)]
#[derive(Clone, Debug)]
struct Model {
    #[substitution(layers)]
    layers: Vec<Block>,
    loaded: Vec<String>,
    processed: usize,
}

impl Model {
    fn new() -> Self {
        Self {
            layers: vec![
                Block {
                    mlp: Mlp::Dense(()),
                },
                Block {
                    mlp: Mlp::Sparse(Experts::of_layer(1)),
                },
            ],
            loaded: Vec::new(),
            processed: 0,
        }
    }

    fn experts(&self) -> &Experts {
        match &self.layers[1].mlp {
            Mlp::Sparse(experts) => experts,
            Mlp::Dense(_) => panic!("layer 1 has experts"),
        }
    }
}

impl PipelineStage for Model {
    fn stage(&self) -> Stage {
        Stage::whole(2)
    }
}

impl LoadWeights for Model {
    fn load_weights(
        &mut self,
        weights: &mut WeightStream<'_>,
    ) -> Result<Loaded, SubstitutionError> {
        for tensor in weights {
            self.loaded.push(tensor?.name().to_owned());
        }
        Ok(Loaded {
            parameters: Some(self.loaded.iter().cloned().collect()),
            ..Loaded::default()
        })
    }

    fn check_weights(
        &self,
        tensors: &mut dyn Iterator<Item = TensorInfo>,
    ) -> Result<(), SubstitutionError> {
        for tensor in tensors {
            if tensor.name == "refused" {
                return Err(SubstitutionError::UnexpectedTensors {
                    names: vec![tensor.name],
                    count: 1,
                });
            }
        }
        Ok(())
    }
}

impl ProcessWeightsAfterLoading for Model {
    fn process_weights_after_loading(&mut self) -> Result<(), SubstitutionError> {
        self.processed += 1;
        Ok(())
    }
}

impl fmt::Display for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "a model of {} layers", self.layers.len())
    }
}

/// Experts 1 and 3 of layer 1 are constants.
fn spec() -> SubstitutionSpec {
    let config = serde_json::json!({ "approximate_experts": { "1": [1, 3] } });
    SubstitutionSpec::from_config(&config).expect("a declaration")
}

fn expert(id: u32, part: &str, values: &[f32]) -> NamedTensor {
    let name = format!("model.layers.1.mlp.experts.{id}.{part}");
    NamedTensor::from_f32(name, [values.len()], values).expect("as many bytes as elements")
}

fn load(
    model: &mut impl LoadWeights,
    tensors: Vec<NamedTensor>,
) -> Result<Loaded, SubstitutionError> {
    model.load_weights(&mut tensors.into_iter().map(Ok))
}

#[test]
fn path_is_of_fields_indices_and_variants() {
    assert_eq!(
        visited(&mut Model::new()),
        [("layers.1.mlp.Sparse".to_owned(), 1)]
    );
}

#[test]
fn fields_are_visited_in_order_and_only_marked_ones() {
    #[derive(MoeLayers)]
    #[substitution(crate = locum_substitution)]
    struct Several {
        #[substitution(layers)]
        second: [Experts; 2],
        #[allow(dead_code)]
        unmarked: Experts,
        #[substitution(layers)]
        first: Option<Experts>,
    }

    let mut several = Several {
        second: [Experts::of_layer(5), Experts::of_layer(4)],
        unmarked: Experts::of_layer(9),
        first: Some(Experts::of_layer(3)),
    };
    assert_eq!(
        visited(&mut several),
        [
            ("second.0".to_owned(), 5),
            ("second.1".to_owned(), 4),
            ("first".to_owned(), 3)
        ]
    );
    several.first = None;
    assert_eq!(visited(&mut several).len(), 2);
}

#[test]
fn constants_are_loaded_through_the_wrapper() {
    let mut wrapped = SubstitutedModel::try_new(Model::new(), &spec()).expect("it fits");
    let loaded = load(
        &mut wrapped,
        vec![
            expert(0, "up_proj.weight", &[0.5]),
            expert(1, "approx_value", &[10.0, 20.0]),
            expert(2, "up_proj.weight", &[0.25]),
            expert(3, "approx_value", &[30.0, 40.0]),
        ],
    )
    .expect("all of it fits");

    let constants: Vec<_> = wrapped.experts().constants.iter().collect();
    assert_eq!(constants, [(&1, &[10.0, 20.0]), (&3, &[30.0, 40.0])]);
    // The model's own loader never sees a constant.
    assert_eq!(
        wrapped.loaded,
        [
            "model.layers.1.mlp.experts.0.up_proj.weight",
            "model.layers.1.mlp.experts.2.up_proj.weight"
        ]
    );
    let parameters = loaded.parameters.expect("the loader says");
    assert!(parameters.contains("layers.1.mlp.Sparse.experts.values"));

    wrapped
        .process_weights_after_loading()
        .expect("nothing is missing");
    assert_eq!(wrapped.processed, 1);
}

#[test]
fn missing_constant_is_an_error_and_the_inner_hook_is_not_called() {
    let mut wrapped = SubstitutedModel::try_new(Model::new(), &spec()).expect("it fits");
    load(
        &mut wrapped,
        vec![
            expert(0, "up_proj.weight", &[0.5]),
            expert(1, "approx_value", &[10.0, 20.0]),
            expert(2, "up_proj.weight", &[0.25]),
        ],
    )
    .expect("a part of it fits");
    let error = wrapped
        .process_weights_after_loading()
        .expect_err("one is missing");
    assert!(
        matches!(error, SubstitutionError::Missing { .. }),
        "{error}"
    );
    assert_eq!(wrapped.processed, 0);
}

#[test]
fn declaration_that_does_not_fit_is_refused() {
    let config = serde_json::json!({ "approximate_experts": { "0": [1] } });
    let spec = SubstitutionSpec::from_config(&config).expect("a declaration");
    let error = SubstitutedModel::try_new(Model::new(), &spec).expect_err("layer 0 is dense");
    assert!(
        matches!(error, SubstitutionError::Layer { layer: 0, .. }),
        "{error}"
    );
}

#[test]
fn wrapper_forwards_to_the_model() {
    let mut wrapped = SubstitutedModel::try_new(Model::new(), &SubstitutionSpec::default())
        .expect("nothing is declared");
    assert_eq!(wrapped.stage(), Stage::whole(2));
    assert_eq!(wrapped.to_string(), "a model of 2 layers");
    assert_eq!(wrapped.layers.len(), 2);
    let refused = TensorInfo::new("refused", locum_substitution::Dtype::F32, [1]);
    assert!(
        wrapped
            .check_weights(&mut std::iter::once(refused))
            .is_err()
    );
    assert!(wrapped.check_weights(&mut std::iter::empty()).is_ok());
    wrapped
        .process_weights_after_loading()
        .expect("nothing is declared");
    assert_eq!(wrapped.into_inner().processed, 1);
}

#[test]
fn wrapper_shows_its_core() {
    let wrapped = SubstitutedModel::try_new(Model::new(), &spec()).expect("it fits");
    assert_eq!(wrapped.spec().experts(1), [1, 3]);
    assert_eq!(
        wrapped.spec().format(),
        Some(ConfigFormat::ApproximateExperts)
    );
    let core: &Substituted<Model> = wrapped.core();
    let (info, table) = core.moe_layers().next().expect("one layer");
    assert_eq!((info.layer, table.substituted()), (1, &[1, 3][..]));
    assert!(format!("{wrapped:?}").starts_with("SubstitutedModel { core: Substituted { model: "));
}

#[test]
fn clone_is_loaded_apart_from_its_original() {
    let original = SubstitutedModel::try_new(Model::new(), &spec()).expect("it fits");
    let mut clone = original.clone();
    load(&mut clone, vec![expert(1, "approx_value", &[1.0, 2.0])]).expect("it fits");
    assert_eq!(clone.experts().constants.len(), 1);
    assert_eq!(original.experts().constants.len(), 0);
}

#[test]
fn name_and_visibility_are_the_struct_s() {
    mod inner {
        use super::*;

        #[expert_substitution(name = Replaced, crate = locum_substitution)]
        #[derive(Clone)]
        pub(crate) struct Inner {
            #[substitution(layers)]
            pub(crate) experts: Experts,
        }

        hooks!(Inner, 1);
    }

    let experts = Experts::of_layer(0);
    let replaced = inner::Replaced::try_new(inner::Inner { experts }, &Default::default())
        .expect("nothing is declared");
    assert_eq!(replaced.into_inner().experts.layer, 0);
}

#[test]
fn wrapper_lacks_what_its_model_lacks() {
    #[expert_substitution(crate = locum_substitution)]
    #[derive(Clone)]
    struct Silent<T> {
        #[substitution(layers)]
        experts: Experts,
        #[allow(dead_code)]
        other: T,
    }

    /// Whether a type has `Debug`: an inherent constant goes before the trait's.
    struct HasDebug<T>(std::marker::PhantomData<T>);
    trait Without {
        const DEBUG: bool = false;
    }
    impl<T> Without for HasDebug<T> {}
    impl<T: fmt::Debug> HasDebug<T> {
        const DEBUG: bool = true;
    }

    let with_and_without = (
        HasDebug::<SubstitutedModel>::DEBUG,
        HasDebug::<SubstitutedSilent<u8>>::DEBUG,
    );
    assert_eq!(with_and_without, (true, false));
}
