//! From an expert's tensors to packed rows.
//!
//! Tensors are kept as views of the checkpoint until all of a packed parameter have arrived, in any
//! order and over several calls; then its rows are copied once, straight from the views.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};
use locum_substitution::{
    ExpertWeights, Listing, NamedTensor, RouteTable, SubstitutionError, TensorBytes, TensorInfo,
};

use super::{ExpertsConfig, RoutedExperts};
use crate::memory::gather;
use crate::parameter::{check_shape, dtype, tensor};

/// The packed parameter with the gate and up projections; also its name in packed checkpoints.
pub(super) const GATE_UP: &str = "gate_up_proj";
/// The packed parameter with the down projections.
pub(super) const DOWN: &str = "down_proj";

/// An expert's gate or up or down projection, by its place in [`super::ExpertNames`].
const GATE: usize = 0;
const UP: usize = 1;
const DOWN_PART: usize = 2;

/// What has arrived of the packed parameters and is not packed yet.
#[derive(Clone, Debug)]
pub(super) struct Packing {
    gate_up: Pending,
    down: Pending,
}

impl Packing {
    pub(super) fn new(config: &ExpertsConfig, table: &RouteTable) -> Self {
        let matrix = config.hidden * config.intermediate;
        let retained = table.retained().len();
        Self {
            gate_up: Pending::new(retained, 2, matrix),
            down: Pending::new(retained, 1, matrix),
        }
    }
}

/// One packed parameter: for each retained row, its matrices one below the other.
#[derive(Clone, Debug)]
struct Pending {
    /// `[retained, matrices]`
    views: Vec<Option<TensorBytes>>,
    matrices: usize,
    /// Elements of a matrix.
    elements: usize,
    dtype: Option<DType>,
}

impl Pending {
    fn new(retained: usize, matrices: usize, elements: usize) -> Self {
        Self {
            views: vec![None; retained * matrices],
            matrices,
            elements,
            dtype: None,
        }
    }

    /// Keeps a view of matrices from `first` on of a row, and checks that its type is the others'.
    fn put(
        &mut self,
        info: &TensorInfo,
        row: usize,
        first: usize,
        bytes: &TensorBytes,
    ) -> Result<(), SubstitutionError> {
        let dtype = dtype(info)?;
        let expected = *self.dtype.get_or_insert(dtype);
        if expected != dtype {
            let expected = match expected {
                DType::F16 => "f16",
                DType::BF16 => "bf16",
                _ => "f32",
            };
            return Err(SubstitutionError::model(format!(
                "tensor `{}` has dtype {}, but other experts' tensors of the layer are {expected}: \
                 they must be the same to be packed",
                info.name, info.dtype
            )));
        }
        let size = self.elements * dtype.size();
        for matrix in 0..bytes.len() / size {
            let view = bytes.slice(matrix * size..(matrix + 1) * size);
            self.views[row * self.matrices + first + matrix] = Some(view);
        }
        Ok(())
    }

    /// The packed rows, once all have arrived.
    fn pack<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
    ) -> Result<Option<Tensor<D>>, SubstitutionError> {
        let Some(dtype) = self.dtype else {
            return Ok(None);
        };
        if self.views.iter().any(Option::is_none) {
            return Ok(None);
        }
        let rows = gather(self.views.iter_mut().filter_map(Option::take))?;
        self.dtype = None;
        Ok(Some(tensor(rows, shape, dtype, device)))
    }
}

/// A tensor below the experts' prefix.
enum Part {
    /// A projection of a retained expert.
    Matrix { row: usize, part: usize },
    /// A packed tensor, its rows those of all logical experts or of the retained ones.
    Packed { parameter: &'static str },
}

impl RoutedExperts {
    fn part(&self, expert: Option<u32>, part: &str) -> Option<Part> {
        match expert {
            Some(expert) => Some(Part::Matrix {
                row: self.table.retained().binary_search(&expert).ok()?,
                part: self.config.names.parts.iter().position(|p| *p == part)?,
            }),
            None => [GATE_UP, DOWN]
                .into_iter()
                .find(|parameter| *parameter == part)
                .map(|parameter| Part::Packed { parameter }),
        }
    }

    /// The shape of an expert's part: one matrix, or what a packed row holds.
    fn shape(&self, part: &Part) -> [usize; 2] {
        let (hidden, intermediate) = (self.config.hidden, self.config.intermediate);
        match part {
            Part::Matrix {
                part: GATE | UP, ..
            } => [intermediate, hidden],
            Part::Packed { parameter } if *parameter == GATE_UP => [2 * intermediate, hidden],
            _ => [hidden, intermediate],
        }
    }

    fn put_packed(
        &mut self,
        info: &TensorInfo,
        bytes: &TensorBytes,
        parameter: &str,
    ) -> Result<(), SubstitutionError> {
        let pending = if parameter == GATE_UP {
            &mut self.packing.gate_up
        } else {
            &mut self.packing.down
        };
        let stored = info.shape.first().copied().unwrap_or(1);
        let compact = stored == self.table.retained().len();
        let size = bytes.len() / stored.max(1);
        for (row, &expert) in self.table.retained().iter().enumerate() {
            let stored_row = if compact { row } else { expert as usize };
            let view = bytes.slice(stored_row * size..(stored_row + 1) * size);
            pending.put(info, row, 0, &view)?;
        }
        Ok(())
    }

    /// Packs what is complete, and names the parameter.
    fn pack(&mut self, gate_up: bool) -> Result<Option<&'static str>, SubstitutionError> {
        let (parameter, pending, name) = if gate_up {
            (&mut self.gate_up_proj, &mut self.packing.gate_up, GATE_UP)
        } else {
            (&mut self.down_proj, &mut self.packing.down, DOWN)
        };
        let shape = parameter.lazy_shape().dims::<3>();
        let packed = pending.pack(shape, &parameter.lazy_device())?;
        Ok(packed.map(|packed| {
            *parameter = Param::initialized(parameter.id, packed);
            name
        }))
    }
}

impl ExpertWeights for RoutedExperts {
    fn retained(&self) -> &[u32] {
        self.table.retained()
    }

    fn check(
        &self,
        tensor: &TensorInfo,
        expert: Option<u32>,
        part: &str,
    ) -> Result<bool, SubstitutionError> {
        let Some(part) = self.part(expert, part) else {
            return Ok(false);
        };
        let [rows, columns] = self.shape(&part);
        match part {
            Part::Matrix { .. } => check_shape(tensor, &[rows, columns])?,
            Part::Packed { .. } => {
                let compact = tensor.shape.first() == Some(&self.table.retained().len());
                let stored = if compact {
                    self.table.retained().len()
                } else {
                    self.table.num_logical()
                };
                check_shape(tensor, &[stored, rows, columns])?;
            }
        }
        Ok(true)
    }

    fn take(
        &mut self,
        tensor: NamedTensor,
        expert: Option<u32>,
        part: &str,
    ) -> Result<Option<&'static str>, SubstitutionError> {
        if !self.check(tensor.info(), expert, part)? {
            return Ok(None);
        }
        let (info, bytes) = tensor.into_parts();
        let gate_up = match self.part(expert, part) {
            None => return Ok(None),
            Some(Part::Matrix {
                row,
                part: DOWN_PART,
            }) => {
                self.packing.down.put(&info, row, 0, &bytes)?;
                false
            }
            Some(Part::Matrix { row, part }) => {
                self.packing.gate_up.put(&info, row, part, &bytes)?;
                true
            }
            Some(Part::Packed { parameter }) => {
                self.put_packed(&info, &bytes, parameter)?;
                parameter == GATE_UP
            }
        };
        self.pack(gate_up)
    }

    fn list_missing(&self, missing: &mut Listing) {
        let parameters = [
            (
                self.gate_up_proj.is_initialized(),
                &self.packing.gate_up,
                GATE,
            ),
            (
                self.down_proj.is_initialized(),
                &self.packing.down,
                DOWN_PART,
            ),
        ];
        for (loaded, pending, first) in parameters {
            if loaded {
                continue;
            }
            for (index, _) in pending
                .views
                .iter()
                .enumerate()
                .filter(|(_, v)| v.is_none())
            {
                missing.push(|| {
                    let expert = self.table.retained()[index / pending.matrices];
                    let part = self.config.names.parts[first + index % pending.matrices];
                    format!(
                        "`{}.{expert}.{part}` (layer {}, expert {expert})",
                        self.config.prefix, self.config.layer
                    )
                });
            }
        }
    }
}
