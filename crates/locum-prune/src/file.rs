//! The statistics file: safetensors, whose tensors are the exact sums.
//!
//! `__metadata__` has one entry, `locum_statistics`: JSON with the format's `version`, the
//! [`Origin`], and of each MoE layer its number, prefix, hidden size, tokens, experts and the logical
//! ids of those that are constants. Of each layer there are four tensors of `U64`:
//!
//! | name | shape | |
//! |---|---|---|
//! | `layers.L.tokens` | `[experts]` | routed tokens |
//! | `layers.L.scalar_sums` | `[experts, 6, 2]` | `Σw`, `Σw²`, `Σ‖y‖`, `Σw·‖y‖`, `Σ‖y‖²`, `Σw²·‖y‖²` |
//! | `layers.L.output_sum` | `[retained, hidden, 2]` | `Σy` |
//! | `layers.L.weighted_output_sum` | `[retained, hidden, 2]` | `Σw²·y` |
//!
//! Progress of a calibration is such a file with a second entry, `locum_progress`: a hash of the weights'
//! files, as they were.
//!
//! A sum is a whole number of 2⁻⁷² in two's complement of 128 bits, as two words, the lower one first.
//! The same sums are the same bytes.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use locum_checkpoint::FileMap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::PruneError;
use crate::save::failed;
use crate::statistics::{Origin, Statistics};
use crate::sums::{ExpertSums, LayerSums, SCALARS, Sums};

const ENTRY: &str = "locum_statistics";
const PROGRESS: &str = "locum_progress";
const VERSION: u32 = 1;
/// The longest header that is looked at: that of the safetensors crate.
const LONGEST_HEADER: u64 = 100_000_000;

/// What `__metadata__` says.
#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    #[serde(flatten)]
    body: Body,
}

#[derive(Serialize, Deserialize)]
struct Body {
    origin: Origin,
    layers: Vec<LayerHeader>,
}

/// What can be told of a file of any version.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// What is said of a layer beside its sums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LayerHeader {
    layer: u32,
    prefix: String,
    hidden: usize,
    tokens: u64,
    experts: usize,
    substituted: Vec<u32>,
}

impl LayerHeader {
    pub(crate) fn of(sums: &LayerSums) -> Self {
        Self {
            layer: sums.layer,
            prefix: sums.prefix.clone(),
            hidden: sums.hidden,
            tokens: sums.tokens,
            experts: sums.experts.len(),
            substituted: sums.substituted.clone(),
        }
    }

    /// That of the sums of both.
    pub(crate) fn add(&mut self, other: &Self) -> Result<(), PruneError> {
        let tokens = self.tokens.checked_add(other.tokens);
        let tokens = tokens.ok_or(PruneError::TooManyTokens { layer: self.layer })?;
        self.tokens = other.tokens;
        if self != other {
            return Err(PruneError::OtherLayers);
        }
        self.tokens = tokens;
        Ok(())
    }
}

/// The tensors of a layer.
#[derive(Clone, Copy)]
enum Part {
    Tokens,
    Scalars,
    Output,
    WeightedOutput,
}

impl Part {
    const ALL: [Self; 4] = [
        Self::Tokens,
        Self::Scalars,
        Self::Output,
        Self::WeightedOutput,
    ];

    fn name(self, layer: u32) -> String {
        let part = match self {
            Self::Tokens => "tokens",
            Self::Scalars => "scalar_sums",
            Self::Output => "output_sum",
            Self::WeightedOutput => "weighted_output_sum",
        };
        format!("layers.{layer}.{part}")
    }

    fn shape(self, layer: &LayerHeader) -> Vec<usize> {
        let experts = layer.experts;
        match self {
            Self::Tokens => vec![experts],
            Self::Scalars => vec![experts, SCALARS, 2],
            Self::Output | Self::WeightedOutput => {
                vec![experts - layer.substituted.len(), layer.hidden, 2]
            }
        }
    }

    fn sums(self, expert: &ExpertSums) -> &[i128] {
        match self {
            Self::Tokens => &[],
            Self::Scalars => &expert.scalars,
            Self::Output => &expert.output,
            Self::WeightedOutput => &expert.weighted_output,
        }
    }

    fn sums_mut(self, expert: &mut ExpertSums) -> &mut [i128] {
        match self {
            Self::Tokens => &mut [],
            Self::Scalars => &mut expert.scalars,
            Self::Output => &mut expert.output,
            Self::WeightedOutput => &mut expert.weighted_output,
        }
    }
}

/// Writes sums, a layer's part at a time, to what is called `path` in messages; `sums` gives those of a
/// layer by its place. `weights` is there in progress only.
pub(crate) fn write<'s>(
    origin: &Origin,
    weights: Option<&str>,
    layers: &[LayerHeader],
    mut sums: impl FnMut(usize) -> Result<Cow<'s, LayerSums>, PruneError>,
    path: &Path,
    out: &mut dyn Write,
) -> Result<(), PruneError> {
    let written = |result: io::Result<()>| result.map_err(failed("write", path));
    let header =
        header(origin, weights, layers).map_err(|error| failed("write", path)(error.into()));
    written(out.write_all(&header?))?;
    let mut bytes = Vec::new();
    for place in 0..layers.len() {
        let layer = sums(place)?;
        for part in Part::ALL {
            bytes.clear();
            for expert in &layer.experts {
                if let Part::Tokens = part {
                    bytes.extend(expert.tokens.to_le_bytes());
                }
                for sum in part.sums(expert) {
                    bytes.extend_from_slice(&sum.to_le_bytes());
                }
            }
            written(out.write_all(&bytes))?;
        }
    }
    Ok(())
}

/// All that is before the sums.
fn header(
    origin: &Origin,
    weights: Option<&str>,
    layers: &[LayerHeader],
) -> serde_json::Result<Vec<u8>> {
    let header = Header {
        version: VERSION,
        body: Body {
            origin: origin.clone(),
            layers: layers.to_vec(),
        },
    };
    let mut metadata = json!({ ENTRY: serde_json::to_string(&header)? });
    if let Some(weights) = weights {
        metadata[PROGRESS] = weights.into();
    }
    let mut entries = Map::new();
    entries.insert("__metadata__".into(), metadata);
    let mut offset = 0;
    for layer in layers {
        for part in Part::ALL {
            let shape = part.shape(layer);
            let end = offset + 8 * shape.iter().product::<usize>();
            let tensor = json!({"dtype": "U64", "shape": shape, "data_offsets": [offset, end]});
            entries.insert(part.name(layer.layer), tensor);
            offset = end;
        }
    }
    let mut entries = serde_json::to_vec(&entries)?;
    // Tensors start at a multiple of their elements' size.
    entries.resize(entries.len().next_multiple_of(8), b' ');
    Ok([&(entries.len() as u64).to_le_bytes(), entries.as_slice()].concat())
}

/// Whether a file says that it holds statistics, of whatever version, or progress; what it holds is not
/// looked at.
pub(crate) fn is_statistics(path: &Path) -> bool {
    let header = || -> io::Result<Value> {
        let mut file = File::open(path)?;
        let mut length = [0; 8];
        file.read_exact(&mut length)?;
        let mut header = Vec::new();
        let length = u64::from_le_bytes(length).min(LONGEST_HEADER);
        file.take(length).read_to_end(&mut header)?;
        Ok(serde_json::from_slice(&header)?)
    };
    header().is_ok_and(|header| header["__metadata__"][ENTRY].is_string())
}

/// A statistics file, whose layers are read one by one.
#[derive(Debug)]
pub(crate) struct StatisticsFile {
    path: PathBuf,
    map: FileMap,
    contents: Contents,
}

/// What a file says beside its sums; that its tensors are those is checked.
#[derive(Debug)]
struct Contents {
    origin: Origin,
    weights: Option<String>,
    layers: Vec<LayerHeader>,
    /// Where in the file their sums are.
    places: Vec<Range<usize>>,
}

impl StatisticsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, PruneError> {
        let map = FileMap::open(path)?;
        let contents = parse(map.bytes()).map_err(|reason| PruneError::NotStatistics {
            path: path.into(),
            reason,
        })?;
        Ok(Self {
            path: path.into(),
            map,
            contents,
        })
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.contents.origin
    }

    pub(crate) fn layers(&self) -> &[LayerHeader] {
        &self.contents.layers
    }

    /// What progress says of the weights.
    pub(crate) fn weights(&self) -> Option<&str> {
        self.contents.weights.as_deref()
    }

    /// The sums of a layer, by its place.
    pub(crate) fn layer(&self, place: usize) -> Result<LayerSums, PruneError> {
        // As it goes, it lets go of what was read.
        let _read = self.map.view(self.contents.places[place].clone());
        let tensors = SafeTensors::deserialize(self.map.bytes()).map_err(|error| error.to_string());
        tensors
            .and_then(|tensors| parse_layer(&self.contents.layers[place], &tensors))
            .map_err(|reason| PruneError::NotStatistics {
                path: self.path.clone(),
                reason,
            })
    }

    /// The sums of all layers.
    pub(crate) fn sums(&self) -> Result<Sums, PruneError> {
        let layers = (0..self.layers().len()).map(|place| self.layer(place));
        Ok(Sums {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }
}

fn parse(bytes: &[u8]) -> Result<Contents, String> {
    let (header, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let entries = metadata.metadata().as_ref();
    let entry = |name| entries.and_then(|entries: &HashMap<String, String>| entries.get(name));
    let said = entry(ENTRY).ok_or_else(|| format!("it has no `{ENTRY}` among its metadata"))?;
    let wrong = |error: serde_json::Error| format!("`{ENTRY}` {error}");
    let AnyVersion { version } = serde_json::from_str(said).map_err(wrong)?;
    if version != VERSION {
        return Err(format!(
            "its version is {version}, this program reads {VERSION}: calibrate again"
        ));
    }
    let Body { origin, layers } = serde_json::from_str(said).map_err(wrong)?;
    origin.check()?;
    if let Some(pair) = layers.windows(2).find(|p| p[0].layer >= p[1].layer) {
        let (layer, before) = (pair[1].layer, pair[0].layer);
        return Err(format!("layer {layer} comes after layer {before}"));
    }
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let counted = origin.counted().checked_mul(origin.length);
    for layer in &layers {
        check_layer(layer, &tensors)?;
        if counted.is_none_or(|counted| layer.tokens > counted as u64) {
            return Err(format!(
                "it counts {} tokens in layer {}, more than {} sequences of {} have",
                layer.tokens,
                layer.layer,
                origin.counted(),
                origin.length
            ));
        }
    }
    let place = |layer: &LayerHeader| {
        let offsets = Part::ALL.iter().filter_map(|part| {
            let found = metadata.info(&part.name(layer.layer))?;
            Some(found.data_offsets)
        });
        let (start, end) = offsets.fold((usize::MAX, 0), |(start, end), (s, e)| {
            (start.min(s), end.max(e))
        });
        let before = size_of::<u64>() + header;
        before.saturating_add(start).min(before + end)..before + end
    };
    Ok(Contents {
        places: layers.iter().map(place).collect(),
        weights: entry(PROGRESS).cloned(),
        origin,
        layers,
    })
}

/// A tensor of a layer, which must be of `U64`.
fn tensor<'t>(
    tensors: &SafeTensors<'t>,
    layer: &LayerHeader,
    part: Part,
) -> Result<TensorView<'t>, String> {
    let name = part.name(layer.layer);
    let tensor = tensors.tensor(&name).map_err(|error| error.to_string())?;
    if tensor.dtype() == Dtype::U64 {
        return Ok(tensor);
    }
    Err(format!("`{name}` is {:?}, not U64", tensor.dtype()))
}

/// The header's sizes are memory: they must be those of tensors, which are in the file.
fn check_layer(header: &LayerHeader, tensors: &SafeTensors<'_>) -> Result<(), String> {
    let number = header.layer;
    let shape = |part| Ok::<_, String>(tensor(tensors, header, part)?.shape().to_vec());
    let (experts, output) = (shape(Part::Tokens)?, shape(Part::Output)?);
    let substituted = &header.substituted;
    let in_order = substituted.windows(2).all(|pair| pair[0] < pair[1]);
    let within = substituted
        .last()
        .is_none_or(|&last| (last as usize) < header.experts);
    let sizes = experts.first() == Some(&header.experts)
        && output.first().copied() == header.experts.checked_sub(substituted.len())
        && output.get(1) == Some(&header.hidden);
    if !sizes || !in_order || !within {
        return Err(format!(
            "what `{ENTRY}` says of layer {number} is not what the tensors are"
        ));
    }
    for part in Part::ALL {
        let (found, expected) = (shape(part)?, part.shape(header));
        if found != expected {
            let name = part.name(number);
            return Err(format!("`{name}` is {found:?}, expected {expected:?}"));
        }
    }
    Ok(())
}

/// Reads a layer that was checked.
fn parse_layer(header: &LayerHeader, tensors: &SafeTensors<'_>) -> Result<LayerSums, String> {
    let mut layer = LayerSums::new(
        header.layer,
        header.prefix.clone(),
        header.hidden,
        header.experts,
        header.substituted.clone(),
    );
    layer.tokens = header.tokens;
    for part in Part::ALL {
        let tensor = tensor(tensors, header, part)?;
        if let Part::Tokens = part {
            let (words, _) = tensor.data().as_chunks::<8>();
            for (expert, word) in layer.experts.iter_mut().zip(words) {
                expert.tokens = u64::from_le_bytes(*word);
            }
        }
        let (values, _) = tensor.data().as_chunks::<16>();
        let sums = layer.experts.iter_mut().flat_map(|e| part.sums_mut(e));
        for (sum, value) in sums.zip(values) {
            *sum = i128::from_le_bytes(*value);
        }
    }
    let more = layer.experts.iter().position(|e| e.tokens > layer.tokens);
    if let Some(expert) = more {
        return Err(format!(
            "it counts more tokens for expert {expert} of layer {} than the layer saw",
            layer.layer
        ));
    }
    Ok(layer)
}

impl Statistics {
    /// Reads a statistics file, layer by layer: beside what is returned, the exact sums of one layer are
    /// in memory at once.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that is not one of these.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PruneError> {
        let file = StatisticsFile::open(path.as_ref())?;
        let layers = (0..file.layers().len()).map(|place| Ok(file.layer(place)?.statistics()));
        Ok(Self {
            layers: layers.collect::<Result<_, PruneError>>()?,
            origin: file.origin().clone(),
        })
    }
}

#[cfg(test)]
mod tests;
