//! The model: layers of experts that own their constants, and dense ones.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use locum_substitution::{
    BoxError, Constant, Dtype, ModulePath, MoeLayer, MoeLayerInfo, MoeLayerVisitor, MoeLayers,
    PackedPart, PipelineStage, RouteTable, Stage,
};

use super::{Loader, PARTS};

/// Values as they are stored, so that models compare bit for bit.
pub(crate) type Values = Vec<u8>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    pub(crate) norm: Option<Values>,
    /// Those that are built here.
    pub(crate) layers: Vec<Layer>,
    pub(crate) built: Range<u32>,
    pub(crate) loader: Loader,
    pub(crate) clones: Clones,
    /// What a loader that waits for whole experts has not yet used: row and part by layer.
    pub(crate) waiting: BTreeMap<(usize, usize), [Option<Values>; 3]>,
    pub(crate) processed: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Layer {
    Dense(Option<Values>),
    Moe(Experts),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Experts {
    pub(crate) layer: u32,
    pub(crate) prefix: String,
    pub(crate) parts: [&'static str; 3],
    pub(crate) dtype: Dtype,
    pub(crate) table: RouteTable,
    /// `[retained]`, each `[3, 2]`, `[3, 2]` and `[2, 3]` in f32.
    pub(crate) rows: Vec<[Option<Values>; 3]>,
    /// `[substituted]`, each `[2]` in `dtype`.
    pub(crate) constants: Vec<Option<Values>>,
}

/// How often a model was cloned.
#[derive(Debug, Default)]
pub(crate) struct Clones(Arc<AtomicUsize>);

impl Clones {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Clone for Clones {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl PartialEq for Clones {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Model {
    /// Layers of the whole model, the one of multi-token prediction included.
    pub(crate) const TOTAL: u32 = 4;
    /// Decoder layers.
    pub(crate) const DECODER: u32 = 3;

    pub(crate) fn whole() -> Self {
        Self::stage(0..Self::DECODER)
    }

    pub(crate) fn stage(built: Range<u32>) -> Self {
        Self {
            norm: None,
            layers: built
                .clone()
                .map(|layer| match layer {
                    2 => Layer::Dense(None),
                    _ => Layer::Moe(Experts::new(layer, 5)),
                })
                .collect(),
            built,
            loader: Loader::Normal,
            clones: Clones::default(),
            waiting: BTreeMap::new(),
            processed: 0,
        }
    }

    pub(crate) fn with_loader(self, loader: Loader) -> Self {
        Self { loader, ..self }
    }

    /// With constants held in another type than f32.
    pub(crate) fn with_dtype(mut self, dtype: Dtype) -> Self {
        for layer in &mut self.layers {
            if let Layer::Moe(experts) = layer {
                experts.dtype = dtype.clone();
            }
        }
        self
    }

    /// The experts of a layer that is built here.
    pub(crate) fn experts(&self, layer: u32) -> &Experts {
        self.layers
            .iter()
            .find_map(|l| match l {
                Layer::Moe(experts) if experts.layer == layer => Some(experts),
                _ => None,
            })
            .expect("an MoE layer that is built here")
    }
}

impl Experts {
    pub(crate) fn new(layer: u32, logical: u32) -> Self {
        Self::at(layer, format!("model.layers.{layer}.mlp.experts"), logical)
    }

    pub(crate) fn at(layer: u32, prefix: String, logical: u32) -> Self {
        Self {
            layer,
            prefix,
            parts: PARTS,
            dtype: Dtype::F32,
            table: RouteTable::all_retained(logical),
            rows: vec![Default::default(); logical as usize],
            constants: Vec::new(),
        }
    }

    /// A constant that arrived, from f32.
    pub(crate) fn constant(&self, row: usize) -> Vec<f32> {
        floats(self.constants[row].as_deref().expect("a constant"))
    }

    /// A part of a retained expert that arrived.
    pub(crate) fn weight(&self, row: usize, part: usize) -> Vec<f32> {
        floats(self.rows[row][part].as_deref().expect("a weight"))
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

impl MoeLayer for Experts {
    fn info(&self) -> MoeLayerInfo {
        MoeLayerInfo {
            layer: self.layer,
            prefix: self.prefix.clone(),
            num_logical_experts: self.table.num_logical() as u32,
            hidden_size: 2,
            expert_parts: self.parts.to_vec(),
            packed_parts: vec![
                PackedPart {
                    name: "gate_up_proj",
                    parts: &["gate_proj.weight", "up_proj.weight"],
                },
                PackedPart {
                    name: "down_proj",
                    parts: &["down_proj.weight"],
                },
            ],
            constant_dtype: self.dtype.clone(),
            constants_parameter: "values",
        }
    }

    fn substitute(&mut self, table: &RouteTable) -> Result<(), BoxError> {
        self.rows = vec![Default::default(); table.retained().len()];
        self.constants = vec![None; table.substituted().len()];
        self.table = table.clone();
        Ok(())
    }

    fn load_constants(&mut self, constants: &[Constant]) -> Result<(), BoxError> {
        for constant in constants {
            assert_eq!(self.table.substituted()[constant.row], constant.expert);
            self.constants[constant.row] = Some(constant.value.to_vec());
        }
        Ok(())
    }
}

impl MoeLayers for Model {
    fn visit_moe_layers(&mut self, path: &mut ModulePath, visit: &mut MoeLayerVisitor<'_>) {
        path.within("layers", |path| {
            for (index, layer) in self.layers.iter_mut().enumerate() {
                if let Layer::Moe(experts) = layer {
                    path.within(format!("{index}.mlp.experts"), |path| {
                        experts.visit_moe_layers(path, visit);
                    });
                }
            }
        });
    }
}

impl PipelineStage for Model {
    fn stage(&self) -> Stage {
        Stage {
            total_layers: Self::TOTAL,
            built: self.built.clone(),
        }
    }
}
