//! Statistics that were counted of nothing, to prune fixtures with.

use std::collections::BTreeMap;
use std::path::Path;

use locum::models::ModelFiles;
use locum::prune::{
    ChannelSums, ExpertStatistics, LayerPlan, LayerStatistics, Origin, Plan, PlannedExpert,
    Statistics, Subject,
};
use locum::substitution::SubstitutionSpec;

use crate::fixture;

/// By layer and logical id.
pub type ByExpert<T> = BTreeMap<(u32, u32), T>;

/// Statistics by which the mean outputs of some experts are given vectors. Each was routed twice; all
/// others were never routed.
#[must_use]
pub fn statistics_with_means(subject: &Subject, means: &ByExpert<Vec<f32>>) -> Statistics {
    let layers = subject.layers().iter().map(|layer| {
        let info = &layer.info;
        let expert = |expert| {
            let mean = means.get(&(info.layer, expert));
            let sum: ChannelSums = match mean {
                Some(mean) => mean.iter().map(|&mean| 2.0 * f64::from(mean)).collect(),
                None => vec![0.0; info.hidden_size].into(),
            };
            ExpertStatistics {
                tokens: if mean.is_some() { 2 } else { 0 },
                weighted_output_sum: sum.clone(),
                squared_score_sum: if mean.is_some() { 2.0 } else { 0.0 },
                output_sum: sum,
                ..ExpertStatistics::default()
            }
        };
        LayerStatistics {
            layer: info.layer,
            prefix: info.prefix.clone(),
            hidden: info.hidden_size,
            tokens: 100,
            substituted: layer.table.substituted().to_vec(),
            experts: (0..info.num_logical_experts).map(expert).collect(),
        }
    });
    Statistics {
        origin: Origin::default(),
        layers: layers.collect(),
    }
}

/// A plan of given experts.
#[must_use]
pub fn plan_of(subject: &Subject, experts: impl Fn(u32, u32) -> bool) -> Plan {
    let layers = subject.layers().iter().map(|layer| {
        let number = layer.info.layer;
        let retained = layer.table.retained().iter();
        let chosen = retained.filter(|&&expert| experts(number, expert));
        LayerPlan {
            layer: number,
            num_logical_experts: layer.info.num_logical_experts,
            substituted: chosen
                .map(|&expert| PlannedExpert {
                    expert,
                    value: None,
                    rank: None,
                    tokens: None,
                })
                .collect(),
        }
    });
    Plan {
        settings: None,
        layers: layers.collect(),
    }
}

/// The constants of a fixture in the `approximate_experts` format.
#[must_use]
pub fn constants_of(name: &str) -> ByExpert<Vec<f32>> {
    let files = ModelFiles::open(fixture(name)).unwrap();
    let spec = SubstitutionSpec::from_config(files.config()).unwrap();
    let checkpoint = files.checkpoint().unwrap();
    let layers = spec.layers().flat_map(|(layer, declared)| {
        let experts = declared.experts.iter();
        experts.map(move |&expert| (layer, expert))
    });
    layers
        .map(|(layer, expert)| {
            let end = format!("layers.{layer}.");
            let part = format!(".experts.{expert}.approx_value");
            let mut names = checkpoint.infos().map(|info| info.name.as_str());
            let name = names
                .find(|name| name.contains(&end) && name.ends_with(&part))
                .unwrap();
            let value = checkpoint.tensor(name).unwrap().to_f32().unwrap();
            ((layer, expert), value)
        })
        .collect()
}

/// What a directory has, names relative to it: files with their bytes.
#[must_use]
pub fn contents(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.path().is_dir() {
            for (below, bytes) in contents(&entry.path()) {
                files.insert(format!("{name}/{below}"), bytes);
            }
        } else {
            files.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
    files
}
