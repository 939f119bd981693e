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
//! The last tensor, `checksum` of 32 `U8`, is the SHA-256 of all the bytes before it.
//!
//! Progress of a calibration is such a file with a second entry, `locum_progress`: a hash of the weights'
//! files, as they were.
//!
//! A sum is a whole number of 2⁻⁷² in two's complement of 128 bits, as two words, the lower one first.
//! The same sums are the same bytes.

mod parse;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use locum_checkpoint::FileMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::PruneError;
use crate::channel_sums::{BYTES, ChannelSums};
use crate::save::failed;
use crate::statistics::{LayerStatistics, Origin, Statistics};
use crate::sums::{ExpertSums, LayerSums, SCALARS, Sums};
use parse::{Contents, Places, parse, parse_layer, parse_scalars};

const ENTRY: &str = "locum_statistics";
const PROGRESS: &str = "locum_progress";
const VERSION: u32 = 2;
const CHECKSUM: &str = "checksum";
/// Bytes of the checksum.
const CHECKSUM_SIZE: usize = 32;
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
    let mut hash = Sha256::new();
    let mut write = |bytes: &[u8]| {
        hash.update(bytes);
        out.write_all(bytes).map_err(failed("write", path))
    };
    let header =
        header(origin, weights, layers).map_err(|error| failed("write", path)(error.into()));
    write(&header?)?;
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
            write(&bytes)?;
        }
    }
    let checksum = hash.finalize();
    out.write_all(&checksum).map_err(failed("write", path))
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
    let end = offset + CHECKSUM_SIZE;
    let checksum = json!({"dtype": "U8", "shape": [CHECKSUM_SIZE], "data_offsets": [offset, end]});
    entries.insert(CHECKSUM.into(), checksum);
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

/// Checks the checksum at the end.
fn check_sum(map: &FileMap) -> Result<(), String> {
    const PIECE: usize = 8 << 20;
    let (before, checksum) = map
        .bytes()
        .split_at(map.bytes().len().saturating_sub(CHECKSUM_SIZE));
    let mut hash = Sha256::new();
    for start in (0..before.len()).step_by(PIECE) {
        // As it goes, the piece leaves memory.
        hash.update(&map.view(start..before.len().min(start + PIECE))[..]);
    }
    if hash.finalize()[..] == *checksum {
        Ok(())
    } else {
        Err("its bytes are not those of its checksum: it was damaged, or written by another program".into())
    }
}

/// A statistics file, whose layers are read one by one.
#[derive(Debug)]
pub(crate) struct StatisticsFile {
    path: PathBuf,
    map: FileMap,
    contents: Contents,
}

impl StatisticsFile {
    pub(crate) fn open(path: &Path) -> Result<Self, PruneError> {
        let map = FileMap::open(path)?;
        let wrong = |reason| PruneError::NotStatistics {
            path: path.into(),
            reason,
        };
        let contents = parse(map.bytes()).map_err(wrong)?;
        check_sum(&map).map_err(wrong)?;
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
        self.read(place, parse_layer)
    }

    /// What statistics have of a layer, by its place: sums by channel stay in the file.
    fn statistics(&self, place: usize) -> Result<LayerStatistics, PruneError> {
        let mut layer = self.read(place, parse_scalars)?.statistics();
        let hidden = layer.hidden;
        let [output, weighted] = [Part::Output, Part::WeightedOutput]
            .map(|part| self.contents.places[place].of(part).start);
        let constants = &layer.substituted;
        let retained = (0..)
            .zip(&mut layer.experts)
            .filter(|(id, _)| constants.binary_search(id).is_err());
        for (row, (_, expert)) in retained.enumerate() {
            let of_row = |start| {
                let size = BYTES * hidden;
                let start = start + row * size;
                ChannelSums::of_file(&self.map, start..start + size)
            };
            expert.output_sum = of_row(output);
            expert.weighted_output_sum = of_row(weighted);
        }
        Ok(layer)
    }

    /// Reads something of a layer, by its place.
    fn read<T>(
        &self,
        place: usize,
        parse: impl FnOnce(&LayerHeader, &Places, &[u8]) -> Result<T, String>,
    ) -> Result<T, PruneError> {
        let Contents { layers, places, .. } = &self.contents;
        // As it goes, it lets go of what was read.
        let _read = self.map.view(places[place].all());
        parse(&layers[place], &places[place], self.map.bytes()).map_err(|reason| {
            PruneError::NotStatistics {
                path: self.path.clone(),
                reason,
            }
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

impl Statistics {
    /// Opens a statistics file and reads the scalars. Sums by channel, which are nearly all of it, are
    /// read from it when they are [asked for](ChannelSums::read): while these statistics or parts of them
    /// are there, nobody may write into the file or cut it short. That another file takes its name is no
    /// harm.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that is not one of these.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PruneError> {
        let file = StatisticsFile::open(path.as_ref())?;
        let layers = (0..file.layers().len()).map(|place| file.statistics(place));
        Ok(Self {
            layers: layers.collect::<Result<_, PruneError>>()?,
            origin: file.origin().clone(),
        })
    }
}

#[cfg(test)]
mod tests;
