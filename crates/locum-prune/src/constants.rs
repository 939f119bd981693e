//! The constants that a checkpoint holds.

use std::collections::BTreeMap;

use locum_models::Model;
use locum_substitution::LayerExpert;
use locum_substitution::name::ExpertsName;

use crate::PruneError;

/// The constants of a model, `[hidden]` each, by layer and expert: read from its files as they are
/// stored, whether its weights are loaded or not.
///
/// # Errors
///
/// A tensor that cannot be read, or whose elements are of a type that constants do not have.
pub fn stored_constants(model: &Model) -> Result<BTreeMap<LayerExpert, Vec<f32>>, PruneError> {
    let (spec, checkpoint) = (model.spec(), model.checkpoint());
    let mut constants = BTreeMap::new();
    for info in checkpoint.infos() {
        let by_name;
        let experts = match spec.experts_of_value(&info.name) {
            Some(experts) => experts,
            None => match ExpertsName::parse(&info.name) {
                Some(name) if name.is_approx_value() => {
                    by_name = name.expert.map(|expert| LayerExpert {
                        layer: name.layer,
                        expert,
                    });
                    by_name.as_slice()
                }
                _ => continue,
            },
        };
        let declared = |of: &&LayerExpert| spec.experts(of.layer).contains(&of.expert);
        let experts: Vec<LayerExpert> = experts.iter().filter(declared).copied().collect();
        if experts.is_empty() {
            continue;
        }
        let tensor = checkpoint.tensor(&info.name)?;
        let values = tensor.to_f32().ok_or_else(|| PruneError::ConstantType {
            tensor: info.name.clone(),
            dtype: info.dtype.clone(),
        })?;
        constants.extend(experts.into_iter().map(|of| (of, values.clone())));
    }
    Ok(constants)
}
