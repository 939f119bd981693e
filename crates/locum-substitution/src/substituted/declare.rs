//! The declaration against the model: every rule that needs to know both.

use std::collections::HashMap;

use super::ledger::{LayerLedger, Ledger};
use crate::name::canonical;
use crate::{
    LayerSubstitution, ModulePath, MoeLayerInfo, MoeLayers, PipelineStage, RouteTable, Stage,
    SubstitutionError, SubstitutionSpec,
};

pub(super) fn declare<M: MoeLayers + PipelineStage>(
    model: &mut M,
    spec: &SubstitutionSpec,
) -> Result<Ledger, SubstitutionError> {
    let mut layers = Vec::new();
    model.visit_moe_layers(&mut ModulePath::default(), &mut |path, experts| {
        let info = experts.info();
        layers.push(LayerLedger {
            constants_parameter: join(&path.to_string(), info.constants_parameter),
            table: RouteTable::all_retained(info.num_logical_experts),
            info,
        });
    });

    let stage = model.stage();
    for (layer, declared) in spec.layers() {
        let found: Vec<usize> = (0..layers.len())
            .filter(|&index| layers[index].info.layer == layer)
            .collect();
        let refuse = |reason: String| SubstitutionError::Layer {
            layer,
            experts: declared.experts.clone(),
            reason,
        };
        match found[..] {
            [] => nowhere(layer, &stage).map_or(Ok(()), |reason| Err(refuse(reason)))?,
            [index] => {
                layers[index].table = table(&layers[index].info, declared).map_err(refuse)?;
            }
            _ => {
                let modules: Vec<&str> = found
                    .iter()
                    .map(|&index| layers[index].info.prefix.as_str())
                    .collect();
                return Err(refuse(format!(
                    "which has {} MoE modules: {}",
                    modules.len(),
                    modules.join(", ")
                )));
            }
        }
    }

    if !spec.is_empty() {
        tellable_apart(&layers)?;
    }

    let mut index = 0;
    let mut result = Ok(());
    model.visit_moe_layers(&mut ModulePath::default(), &mut |_, experts| {
        let table = &layers[index].table;
        index += 1;
        if result.is_ok() && !table.substituted().is_empty() {
            result = experts.substitute(table).map_err(SubstitutionError::model);
        }
    });
    result?;
    Ok(Ledger::new(layers))
}

/// Arrivals are noted by prefix: two layers at one could never both be complete.
fn tellable_apart(layers: &[LayerLedger]) -> Result<(), SubstitutionError> {
    let mut prefixes = HashMap::new();
    for LayerLedger { info, .. } in layers {
        if let Some(other) = prefixes.insert(canonical(&info.prefix), info.layer) {
            return Err(SubstitutionError::InvalidExperts {
                reason: format!(
                    "the experts of layers {other} and {} are both at `{}`",
                    info.layer, info.prefix
                ),
            });
        }
    }
    Ok(())
}

/// Why no MoE layer of this index is built here, where that is wrong.
fn nowhere(layer: u32, stage: &Stage) -> Option<String> {
    if layer >= stage.total_layers {
        Some(format!(
            "but the model has {} layers, those of multi-token prediction included",
            stage.total_layers
        ))
    } else if stage.built.contains(&layer) {
        Some("which is dense: it has no experts".into())
    } else {
        None
    }
}

fn table(info: &MoeLayerInfo, declared: &LayerSubstitution) -> Result<RouteTable, String> {
    if let Some(target) = &declared.target {
        if canonical(&target.path) != canonical(&info.prefix) {
            return Err(format!(
                "whose experts are at `{}`, not at `{}`",
                info.prefix, target.path
            ));
        }
        if target.num_logical_experts != info.num_logical_experts {
            return Err(format!(
                "which has {} experts, but `{}.num_logical_experts` is {}",
                info.num_logical_experts, target.path, target.num_logical_experts
            ));
        }
    }
    if !info.constant_dtype.is_float() {
        return Err(format!(
            "whose constants would be {}, which is not f32, f16 or bf16",
            info.constant_dtype
        ));
    }
    RouteTable::new(info.num_logical_experts, &declared.experts).map_err(|e| format!("but {e}"))
}

fn join(path: &str, parameter: &str) -> String {
    if path.is_empty() {
        parameter.to_owned()
    } else {
        format!("{path}.{parameter}")
    }
}
