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
//! A sum is a whole number of 2⁻⁷² in two's complement of 128 bits, as two words, the lower one first.
//! The same sums are the same bytes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::Path;

use locum_checkpoint::read_file;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};

use crate::PruneError;
use crate::statistics::{Origin, Statistics};
use crate::sums::{ExpertSums, LayerSums, SCALARS, Sums};

const ENTRY: &str = "locum_statistics";
const VERSION: u32 = 1;

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

#[derive(Serialize, Deserialize)]
struct LayerHeader {
    layer: u32,
    prefix: String,
    hidden: usize,
    tokens: u64,
    experts: usize,
    substituted: Vec<u32>,
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

    fn shape(self, layer: &LayerSums) -> Vec<usize> {
        let experts = layer.experts.len();
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

/// Writes sums, a layer's part at a time.
pub(crate) fn write(sums: &Sums, origin: &Origin, out: &mut dyn Write) -> io::Result<()> {
    let layers = sums.layers.iter().map(|layer| LayerHeader {
        layer: layer.layer,
        prefix: layer.prefix.clone(),
        hidden: layer.hidden,
        tokens: layer.tokens,
        experts: layer.experts.len(),
        substituted: layer.substituted.clone(),
    });
    let header = Header {
        version: VERSION,
        body: Body {
            origin: origin.clone(),
            layers: layers.collect(),
        },
    };
    let mut entries = Map::new();
    let header = serde_json::to_string(&header)?;
    entries.insert("__metadata__".into(), json!({ ENTRY: header }));
    let mut offset = 0;
    for layer in &sums.layers {
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
    out.write_all(&(entries.len() as u64).to_le_bytes())?;
    out.write_all(&entries)?;
    let mut bytes = Vec::new();
    for layer in &sums.layers {
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
            out.write_all(&bytes)?;
        }
    }
    Ok(())
}

/// Reads sums.
pub(crate) fn read(path: &Path) -> Result<(Origin, Sums), PruneError> {
    let bytes = read_file(path)?;
    parse(&bytes).map_err(|reason| PruneError::NotStatistics {
        path: path.into(),
        reason,
    })
}

fn parse(bytes: &[u8]) -> Result<(Origin, Sums), String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    let entry = metadata
        .metadata()
        .as_ref()
        .and_then(|entries: &HashMap<String, String>| entries.get(ENTRY))
        .ok_or_else(|| format!("it has no `{ENTRY}` among its metadata"))?;
    let wrong = |error: serde_json::Error| format!("`{ENTRY}` {error}");
    let AnyVersion { version } = serde_json::from_str(entry).map_err(wrong)?;
    if version != VERSION {
        return Err(format!(
            "its version is {version}, this program reads {VERSION}: calibrate again"
        ));
    }
    let Body { origin, layers } = serde_json::from_str(entry).map_err(wrong)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let layers = layers.iter().map(|layer| parse_layer(layer, &tensors));
    let layers = layers.collect::<Result<Vec<_>, _>>()?;
    Ok((origin, Sums { layers }))
}

fn parse_layer(header: &LayerHeader, tensors: &SafeTensors<'_>) -> Result<LayerSums, String> {
    let number = header.layer;
    let tensor = |part: Part| {
        let name = part.name(number);
        let tensor = tensors.tensor(&name).map_err(|error| error.to_string())?;
        if tensor.dtype() == Dtype::U64 {
            return Ok(tensor);
        }
        Err(format!("`{name}` is {:?}, not U64", tensor.dtype()))
    };
    // The header's sizes are memory: they must be those of tensors, which are in the file.
    let retained = tensor(Part::Output)?.shape().first().copied();
    let experts = tensor(Part::Tokens)?.shape().first().copied();
    let substituted = &header.substituted;
    let in_order = substituted.windows(2).all(|pair| pair[0] < pair[1]);
    let within = substituted
        .last()
        .is_none_or(|&last| (last as usize) < header.experts);
    let sizes = experts == Some(header.experts)
        && retained == header.experts.checked_sub(substituted.len())
        && tensor(Part::Output)?.shape().get(1) == Some(&header.hidden);
    if !sizes || !in_order || !within {
        return Err(format!(
            "what `{ENTRY}` says of layer {number} is not what the tensors are"
        ));
    }
    let mut layer = LayerSums::new(
        number,
        header.prefix.clone(),
        header.hidden,
        header.experts,
        substituted.clone(),
    );
    layer.tokens = header.tokens;
    for part in Part::ALL {
        let tensor = tensor(part)?;
        let expected = part.shape(&layer);
        if tensor.shape() != expected {
            return Err(format!(
                "`{}` is {:?}, expected {expected:?}",
                part.name(number),
                tensor.shape()
            ));
        }
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
    Ok(layer)
}

impl Statistics {
    /// Reads a statistics file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or that is not one of these.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PruneError> {
        let (origin, sums) = read(path.as_ref())?;
        Ok(sums.statistics(origin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums() -> Sums {
        let mut layer = LayerSums::new(3, "model.layers.3.mlp.experts".into(), 2, 3, vec![1]);
        layer.tokens = 12;
        for (index, expert) in layer.experts.iter_mut().enumerate() {
            expert.tokens = 4 + index as u64;
            expert.scalars = [1, -2, i128::MAX, i128::MIN, 5, index as i128];
        }
        layer.experts[2].output = vec![-7, 1 << 100];
        Sums {
            layers: vec![layer],
        }
    }

    fn written(sums: &Sums) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(sums, &Origin::default(), &mut bytes).expect("written");
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = written(&sums());
        assert_eq!(parse(&bytes), Ok((Origin::default(), sums())));
        assert_eq!(bytes, written(&sums()), "the same bytes");
    }

    /// Counts what is written.
    struct Counter(u64);

    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn statistics_of_16_layers_of_64_experts_take_at_most_80_mb() {
        let layer = |layer| {
            let prefix = format!("model.layers.{layer}.mlp.experts");
            LayerSums::new(layer, prefix, 2048, 64, Vec::new())
        };
        let sums = Sums {
            layers: (0..16).map(layer).collect(),
        };
        let mut counter = Counter(0);
        write(&sums, &Origin::default(), &mut counter).expect("counted");
        assert!(
            (64_000_000..80_000_000).contains(&counter.0),
            "{}",
            counter.0
        );
        let elements = |sums: &ExpertSums| sums.output.capacity() + sums.weighted_output.capacity();
        let experts = sums.layers.iter().flat_map(|layer| &layer.experts);
        let memory = experts
            .map(|e| size_of_val(e) + 16 * elements(e))
            .sum::<usize>();
        assert!(memory < 80_000_000, "{memory}");
    }

    #[test]
    fn what_is_no_statistics_file_is_refused() {
        let bytes = written(&sums());
        assert!(parse(&bytes[..bytes.len() - 1]).is_err(), "cut short");
        assert!(parse(b"not safetensors at all").is_err());
        let other =
            safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None);
        let error = parse(&other.expect("serialized")).expect_err("no entry");
        assert!(error.contains(ENTRY), "{error}");
        let replaced = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|w| w == from.as_bytes());
            let at = at.expect("in the file");
            let mut bytes = bytes.clone();
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            parse(&bytes).expect_err("refused")
        };
        let error = replaced(r#"version\":1"#, r#"version\":9"#);
        assert!(error.contains("version is 9"), "{error}");
        for (from, to) in [
            (r#"hidden\":2"#, r#"hidden\":9"#),
            (r#"experts\":3"#, r#"experts\":9"#),
            (r#"substituted\":[1]"#, r#"substituted\":[9]"#),
        ] {
            let error = replaced(from, to);
            assert!(error.contains("layer 3"), "{error}");
        }
    }
}
