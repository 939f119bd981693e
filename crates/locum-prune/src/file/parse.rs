//! What a statistics file says, of which nothing is trusted.

use std::collections::HashMap;
use std::ops::Range;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::{Body, CHECKSUM, CHECKSUM_SIZE, ENTRY, LayerHeader, PROGRESS, Part, VERSION};
use crate::channel_sums::BYTES;
use crate::statistics::Origin;
use crate::sums::LayerSums;

/// What can be told of a file of any version.
#[derive(Deserialize)]
struct AnyVersion {
    version: u32,
}

/// What a file says beside its sums; that its tensors are those is checked.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) origin: Origin,
    /// What progress says of the weights.
    pub(super) weights: Option<String>,
    pub(super) layers: Vec<LayerHeader>,
    pub(super) places: Vec<Places>,
}

/// Where in a file the parts of a layer are, in the order of [`Part::ALL`].
#[derive(Debug)]
pub(super) struct Places([Range<usize>; Part::ALL.len()]);

impl Places {
    pub(super) fn of(&self, part: Part) -> Range<usize> {
        self.0[part as usize].clone()
    }

    /// What is from the first of them to the last.
    pub(super) fn all(&self) -> Range<usize> {
        let start = self.0.iter().map(|part| part.start).min();
        let end = self.0.iter().map(|part| part.end).max();
        start.unwrap_or(0)..end.unwrap_or(0)
    }
}

/// Reads and checks all that is before the sums.
pub(super) fn parse(bytes: &[u8]) -> Result<Contents, String> {
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
    let counted = origin.counted().checked_mul(origin.length);
    let mut places = Vec::with_capacity(layers.len());
    for layer in &layers {
        check_layer(layer, &metadata)?;
        if counted.is_none_or(|counted| layer.tokens > counted as u64) {
            return Err(format!(
                "it counts {} tokens in layer {}, more than {} sequences of {} have",
                layer.tokens,
                layer.layer,
                origin.counted(),
                origin.length
            ));
        }
        let before = size_of::<u64>() + header;
        let mut parts = Part::ALL.map(|_| 0..0);
        for (place, part) in parts.iter_mut().zip(Part::ALL) {
            let (start, end) = tensor(&metadata, layer, part)?.data_offsets;
            *place = before + start..before + end;
        }
        places.push(Places(parts));
    }
    let end = bytes.len() - size_of::<u64>() - header;
    let at_the_end = metadata.info(CHECKSUM).is_some_and(|tensor| {
        tensor.data_offsets == (end - CHECKSUM_SIZE.min(end), end) && tensor.dtype == Dtype::U8
    });
    if !at_the_end {
        return Err(format!("`{CHECKSUM}` is not at its end"));
    }
    Ok(Contents {
        places,
        weights: entry(PROGRESS).cloned(),
        origin,
        layers,
    })
}

/// A tensor of a layer, which must be of `U64`.
fn tensor<'m>(
    metadata: &'m Metadata,
    layer: &LayerHeader,
    part: Part,
) -> Result<&'m TensorInfo, String> {
    let name = part.name(layer.layer);
    match metadata.info(&name) {
        Some(tensor) if tensor.dtype == Dtype::U64 => Ok(tensor),
        Some(tensor) => Err(format!("`{name}` is {:?}, not U64", tensor.dtype)),
        None => Err(format!("it has no tensor `{name}`")),
    }
}

/// The header's sizes are memory: they must be those of tensors, which are in the file.
fn check_layer(header: &LayerHeader, metadata: &Metadata) -> Result<(), String> {
    let number = header.layer;
    let shape = |part| Ok::<_, String>(tensor(metadata, header, part)?.shape.clone());
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
pub(super) fn parse_layer(
    header: &LayerHeader,
    places: &Places,
    bytes: &[u8],
) -> Result<LayerSums, String> {
    let mut layer = parse_scalars(header, places, bytes)?;
    layer.add_channels();
    for part in [Part::Output, Part::WeightedOutput] {
        read_sums(part, &mut layer, &bytes[places.of(part)]);
    }
    Ok(layer)
}

fn read_sums(part: Part, layer: &mut LayerSums, bytes: &[u8]) {
    let (values, _) = bytes.as_chunks::<BYTES>();
    let sums = layer.experts.iter_mut().flat_map(|e| part.sums_mut(e));
    for (sum, value) in sums.zip(values) {
        *sum = i128::from_le_bytes(*value);
    }
}

/// Reads all but the sums by channel.
pub(super) fn parse_scalars(
    header: &LayerHeader,
    places: &Places,
    bytes: &[u8],
) -> Result<LayerSums, String> {
    let mut layer = LayerSums::without_channels(
        header.layer,
        header.prefix.clone(),
        header.hidden,
        header.experts,
        header.substituted.clone(),
    );
    layer.tokens = header.tokens;
    let (words, _) = bytes[places.of(Part::Tokens)].as_chunks::<8>();
    for (expert, word) in layer.experts.iter_mut().zip(words) {
        expert.tokens = u64::from_le_bytes(*word);
    }
    read_sums(Part::Scalars, &mut layer, &bytes[places.of(Part::Scalars)]);
    let more = layer.experts.iter().position(|e| e.tokens > layer.tokens);
    if let Some(expert) = more {
        return Err(format!(
            "it counts more tokens for expert {expert} of layer {} than the layer saw",
            layer.layer
        ));
    }
    Ok(layer)
}
