//! A loader for any module of this crate's layers: parameters by path, experts by their layer.

use std::collections::{BTreeSet, HashMap, HashSet};

use burn::module::{self, Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Int, Tensor};
use locum_substitution::name::{ExpertsName, canonical};
use locum_substitution::{
    Listing, Loaded, ModulePath, MoeLayer, MoeLayers, NamedTensor, SkipRule, SubstitutionError,
    TensorInfo, WeightStream,
};

use crate::parameter::{check_dimensions, check_shape, id_dtype, ids, value};

/// Loads a module whose parameter paths are tensor names.
///
/// The stream is read to its end, as views, before anything is copied; then parameters are copied
/// once, one after the other. `rule` says which tensors that fit nowhere are passed over.
///
/// The module may be half-loaded after an error: load into a clone, which shares its parameters.
///
/// # Errors
///
/// A tensor of the wrong shape or type, tensors that nobody takes and no rule skips, or an error of
/// the stream.
pub fn load_parameters<M: Module + MoeLayers>(
    mut module: M,
    weights: &mut WeightStream<'_>,
    rule: impl Fn(&str) -> Option<SkipRule>,
) -> Result<(M, Loaded), SubstitutionError> {
    let places = Places::of(&mut module);
    let mut loaded = Loaded {
        parameters: Some(BTreeSet::new()),
        ..Loaded::default()
    };
    let mut parameters = HashMap::new();
    let mut experts: Vec<Vec<ExpertTensor>> = places.layers.iter().map(|_| Vec::new()).collect();
    let mut unexpected = Listing::default();
    for tensor in weights {
        let tensor = tensor?;
        match places.of_tensor(tensor.info())? {
            Place::Parameter(path) => {
                parameters.insert(path, tensor);
            }
            Place::Experts(layer, expert, part) => experts[layer].push(ExpertTensor {
                tensor,
                expert,
                part,
            }),
            Place::Nowhere => match rule(tensor.name()) {
                Some(rule) => loaded.skip(rule),
                None => unexpected.push(|| format!("`{}`", tensor.name())),
            },
        }
    }
    // Experts first: whether a tensor is theirs is theirs to say.
    let mut layer = 0;
    let mut result = Ok(());
    module.visit_moe_layers(&mut ModulePath::default(), &mut |path, moe| {
        let tensors = std::mem::take(&mut experts[layer]);
        layer += 1;
        if result.is_ok() {
            result = take_experts(moe, tensors, path, &rule, &mut loaded, &mut unexpected);
        }
    });
    result?;
    unexpected.none_unexpected()?;

    let mut assignment = Assignment {
        path: Path::default(),
        parameters,
        loaded: &mut loaded,
        result: Ok(()),
    };
    let module = module.map(&mut assignment);
    assignment.result?;
    Ok((module, loaded))
}

/// Checks by name, type and shape alone that tensors are a whole checkpoint for a module.
///
/// # Errors
///
/// What loading them, and [`none_missing`] after that, would fail with.
pub fn check_parameters<M: Module + MoeLayers>(
    mut module: M,
    tensors: &mut dyn Iterator<Item = TensorInfo>,
    rule: impl Fn(&str) -> Option<SkipRule>,
) -> Result<(), SubstitutionError> {
    let places = Places::of(&mut module);
    let mut experts: Vec<Vec<(TensorInfo, Option<u32>, String)>> =
        places.layers.iter().map(|_| Vec::new()).collect();
    let mut seen = BTreeSet::new();
    let mut unexpected = Listing::default();
    let refuse = |info: &TensorInfo, unexpected: &mut Listing| {
        if rule(&info.name).is_none() {
            unexpected.push(|| format!("`{}`", info.name));
        }
    };
    for info in tensors {
        match places.of_tensor(&info)? {
            Place::Parameter(path) => {
                seen.insert(path);
            }
            Place::Experts(layer, expert, part) => experts[layer].push((info, expert, part)),
            Place::Nowhere => refuse(&info, &mut unexpected),
        }
    }
    let mut missing = Listing::default();
    for path in places.parameters.keys().collect::<BTreeSet<_>>() {
        if !seen.contains(path) {
            missing.push(|| format!("`{path}`"));
        }
    }
    let mut layer = 0;
    let mut result = Ok(());
    module.visit_moe_layers(&mut ModulePath::default(), &mut |_, moe| {
        let tensors = std::mem::take(&mut experts[layer]);
        layer += 1;
        if result.is_ok() {
            result = check_experts(moe, tensors, &refuse, &mut unexpected, &mut missing);
        }
    });
    result?;
    unexpected.none_unexpected()?;
    missing.none_missing()
}

/// Checks that every parameter of a module has been loaded.
///
/// # Errors
///
/// [`SubstitutionError::Missing`] with the first eight tensor names and the count.
pub fn none_missing<M: Module + MoeLayers>(module: &M) -> Result<(), SubstitutionError> {
    let mut module = module.clone();
    let mut missing = Listing::default();
    let places = Places::of(&mut module);
    for (path, parameter) in &places.parameters {
        if !parameter.loaded {
            missing.push(|| format!("`{path}`"));
        }
    }
    module.visit_moe_layers(&mut ModulePath::default(), &mut |_, moe| {
        if let Some(experts) = moe.expert_weights() {
            experts.list_missing(&mut missing);
        }
    });
    missing.none_missing()
}

/// A tensor on its way to a layer's experts.
struct ExpertTensor {
    tensor: NamedTensor,
    expert: Option<u32>,
    part: String,
}

fn take_experts(
    moe: &mut dyn MoeLayer,
    tensors: Vec<ExpertTensor>,
    path: &ModulePath,
    rule: &impl Fn(&str) -> Option<SkipRule>,
    loaded: &mut Loaded,
    unexpected: &mut Listing,
) -> Result<(), SubstitutionError> {
    let Some(experts) = moe.expert_weights() else {
        return Ok(());
    };
    for ExpertTensor {
        tensor,
        expert,
        part,
    } in tensors
    {
        if !experts.check(tensor.info(), expert, &part)? {
            match rule(tensor.name()) {
                Some(rule) => loaded.skip(rule),
                None => unexpected.push(|| format!("`{}`", tensor.name())),
            }
            continue;
        }
        if let Some(parameter) = experts.take(tensor, expert, &part)?
            && let Some(parameters) = &mut loaded.parameters
        {
            parameters.insert(format!("{path}.{parameter}"));
        }
    }
    Ok(())
}

fn check_experts(
    moe: &mut dyn MoeLayer,
    tensors: Vec<(TensorInfo, Option<u32>, String)>,
    refuse: &impl Fn(&TensorInfo, &mut Listing),
    unexpected: &mut Listing,
    missing: &mut Listing,
) -> Result<(), SubstitutionError> {
    let info = moe.info();
    let Some(experts) = moe.expert_weights() else {
        return Ok(());
    };
    let mut seen = BTreeSet::new();
    for (tensor, expert, part) in &tensors {
        if !experts.check(tensor, *expert, part)? {
            refuse(tensor, unexpected);
        } else if let Some(packed) = info.packed_parts.iter().find(|p| p.name == part) {
            seen.extend(
                experts
                    .retained()
                    .iter()
                    .flat_map(|&expert| packed.parts.iter().map(move |part| (expert, *part))),
            );
        } else if let Some(expert) = expert {
            seen.insert((*expert, part.as_str()));
        }
    }
    for &expert in experts.retained() {
        for part in &info.expert_parts {
            if !seen.contains(&(expert, *part)) {
                missing.push(|| {
                    format!(
                        "`{}.{expert}.{part}` (layer {}, expert {expert})",
                        info.prefix, info.layer
                    )
                });
            }
        }
    }
    Ok(())
}

/// Where the tensors of a checkpoint go.
struct Places {
    /// By canonical name, so that a module may spell its paths as any checkpoint does.
    parameters: HashMap<String, Parameter>,
    /// Canonical prefix of each MoE layer's experts.
    layers: Vec<String>,
    by_prefix: HashMap<String, usize>,
}

struct Parameter {
    path: String,
    shape: Vec<usize>,
    /// Whether it holds ids, and not weights.
    ids: bool,
    loaded: bool,
}

enum Place {
    Parameter(String),
    Experts(usize, Option<u32>, String),
    Nowhere,
}

impl Places {
    fn of<M: Module + MoeLayers>(module: &mut M) -> Self {
        let mut survey = Survey {
            path: Path::default(),
            parameters: HashMap::new(),
        };
        module.visit(&mut survey);
        let mut parameters = survey.parameters;
        let mut layers = Vec::new();
        let mut taken = HashSet::new();
        module.visit_moe_layers(&mut ModulePath::default(), &mut |path, moe| {
            layers.push(canonical(&moe.info().prefix).into_owned());
            // A layer that takes its experts itself has no parameters for anyone else to fill.
            if moe.expert_weights().is_some() {
                taken.insert(path.to_string());
            }
        });
        parameters.retain(|_, parameter| {
            let mut ends = parameter.path.match_indices('.').map(|(end, _)| end);
            !ends.any(|end| taken.contains(&parameter.path[..end]))
        });
        let by_prefix = layers
            .iter()
            .enumerate()
            .map(|(index, prefix)| (prefix.clone(), index))
            .collect();
        Self {
            parameters,
            layers,
            by_prefix,
        }
    }

    fn of_tensor(&self, info: &TensorInfo) -> Result<Place, SubstitutionError> {
        let name = canonical(&info.name);
        if let Some(experts) = ExpertsName::parse(&name) {
            let end = name.len() - experts.part.len() - 1;
            let prefix = match experts.expert {
                Some(_) => name[..end]
                    .rsplit_once('.')
                    .map_or("", |(prefix, _)| prefix),
                None => &name[..end],
            };
            if let Some(&layer) = self.by_prefix.get(prefix) {
                return Ok(Place::Experts(
                    layer,
                    experts.expert,
                    experts.part.to_owned(),
                ));
            }
        }
        match self.parameters.get(&*name) {
            Some(parameter) => {
                if parameter.ids {
                    id_dtype(info)?;
                    check_dimensions(info, &parameter.shape)?;
                } else {
                    check_shape(info, &parameter.shape)?;
                }
                Ok(Place::Parameter(name.into_owned()))
            }
            None => Ok(Place::Nowhere),
        }
    }
}

/// The path of the module that is being visited.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn joined(&self) -> String {
        self.0.join(".")
    }
}

/// Collects parameters by path.
struct Survey {
    path: Path,
    parameters: HashMap<String, Parameter>,
}

impl Survey {
    fn add(&mut self, shape: Vec<usize>, loaded: bool, ids: bool) {
        let path = self.path.joined();
        let parameter = Parameter {
            shape,
            loaded,
            ids,
            path: path.clone(),
        };
        self.parameters
            .insert(canonical(&path).into_owned(), parameter);
    }
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.add(param.lazy_shape().to_vec(), param.is_initialized(), false);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.add(param.lazy_shape().to_vec(), param.is_initialized(), true);
    }
}

/// Fills parameters by path.
struct Assignment<'a> {
    path: Path,
    parameters: HashMap<String, NamedTensor>,
    loaded: &'a mut Loaded,
    result: Result<(), SubstitutionError>,
}

impl Assignment<'_> {
    /// The parameter at the current path with the value of its tensor, where there is one.
    fn assign<T: module::Parameter>(
        &mut self,
        param: Param<T>,
        value: impl FnOnce(NamedTensor, &Device) -> Result<T, SubstitutionError>,
    ) -> Param<T> {
        let path = self.path.joined();
        let Some(tensor) = self.parameters.remove(&*canonical(&path)) else {
            return param;
        };
        match value(tensor, &param.lazy_device()) {
            Ok(value) => {
                if let Some(parameters) = &mut self.loaded.parameters {
                    parameters.insert(path);
                }
                Param::initialized(param.id, value)
            }
            Err(error) => {
                self.result = Err(error);
                param
            }
        }
    }
}

impl ModuleMapper for Assignment<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.assign(param, value)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        self.assign(param, ids)
    }
}
