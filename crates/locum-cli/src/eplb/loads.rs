//! Reading load files.

use std::path::Path;

use eplb::Loads;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::input;
use crate::error::CliError;

type Windows = Vec<Vec<Vec<f64>>>;

/// Reads loads by the file's extension.
///
/// - `.json`: `[layers][experts]` or `[windows][layers][experts]` numbers, or an object with these
///   under `logical_count` (as SGLang dumps them).
/// - `.csv`: a line per layer, a column per expert; an empty line starts the next window, `#` a
///   comment.
/// - `.safetensors`: one tensor of shape `[layers, experts]` or `[windows, layers, experts]`.
pub(crate) fn read(path: &Path, tensor: Option<&str>) -> Result<Loads, CliError> {
    let wrong = |problem: String| CliError::Usage(format!("{}: {problem}", path.display()));
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .map(str::to_ascii_lowercase);
    let parse: fn(&[u8], Option<&str>) -> Result<Windows, String> = match extension.as_deref() {
        Some("json") => |bytes, _| json(bytes),
        Some("csv") => |bytes, _| csv(bytes),
        Some("safetensors") => safetensors,
        _ => {
            return Err(wrong(
                "the name of a load file ends with .json, .csv or .safetensors".into(),
            ));
        }
    };
    if tensor.is_some() && extension.as_deref() != Some("safetensors") {
        return Err(wrong(
            "--tensor is for .safetensors files; leave it out".into(),
        ));
    }
    let bytes = input::bytes(path)?;
    let windows = parse(&bytes, tensor).map_err(wrong)?;
    if windows.iter().all(Vec::is_empty) {
        return Err(wrong(
            "there are no layers; expected [layers][experts] or [windows][layers][experts] numbers"
                .into(),
        ));
    }
    Loads::from_windows(windows).map_err(|error| wrong(error.to_string()))
}

/// An integer as a load. Above 2^53 rounding could hide that it does not fit.
fn count(value: u64, place: &str) -> Result<f64, String> {
    if value > 1 << 53 {
        return Err(format!(
            "{place}: load {value} is above 2^53 and cannot be held exactly; record shorter windows or scale the loads down"
        ));
    }
    Ok(value as f64)
}

fn json(bytes: &[u8]) -> Result<Windows, String> {
    let document = input::parse_json(bytes)?;
    let is_plan = document.get("physical_to_logical_map").is_some();
    let (value, name) = match document.get("logical_count") {
        _ if is_plan => {
            return Err("this is a placement, not loads; it goes with --current".into());
        }
        Some(counts) => (counts, "logical_count"),
        None => (&document, "loads"),
    };
    let list = |value: &Value| value.as_array().cloned();
    let outer = list(value).ok_or_else(|| {
        format!(
            "{name}: expected [layers][experts] or [windows][layers][experts] numbers, found {}",
            kind(value)
        )
    })?;
    let deep = outer
        .iter()
        .any(|entry| list(entry).is_some_and(|inner| inner.iter().any(Value::is_array)));
    if deep {
        let windows = outer.iter().enumerate();
        windows
            .map(|(index, window)| json_window(window, &format!("{name}[{index}]")))
            .collect()
    } else {
        Ok(vec![json_window(value, name)?])
    }
}

fn json_window(value: &Value, place: &str) -> Result<Vec<Vec<f64>>, String> {
    let layers = value
        .as_array()
        .ok_or_else(|| format!("{place}: expected a list of layers, found {}", kind(value)))?;
    let mut window = Vec::with_capacity(layers.len());
    for (layer, experts) in layers.iter().enumerate() {
        let place = format!("{place}[{layer}]");
        let experts = experts.as_array().ok_or_else(|| {
            format!(
                "{place}: expected a list of numbers, found {}",
                kind(experts)
            )
        })?;
        let mut loads = Vec::with_capacity(experts.len());
        for (expert, load) in experts.iter().enumerate() {
            let place = format!("{place}[{expert}]");
            loads.push(match (load.as_u64(), load.as_f64()) {
                (Some(integer), _) => count(integer, &place)?,
                (None, Some(number)) => number,
                (None, None) => {
                    return Err(format!("{place}: expected a number, found {}", kind(load)));
                }
            });
        }
        window.push(loads);
    }
    Ok(window)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn csv(bytes: &[u8]) -> Result<Windows, String> {
    let text = input::text(bytes)?;
    let mut windows: Windows = vec![Vec::new()];
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('#') {
            continue;
        }
        if line.is_empty() {
            if windows.last().is_some_and(|window| !window.is_empty()) {
                windows.push(Vec::new());
            }
            continue;
        }
        let mut loads = Vec::new();
        for (column, cell) in line.split(',').enumerate() {
            let (cell, place) = (
                cell.trim(),
                format!("line {}, column {}", number + 1, column + 1),
            );
            loads.push(match (cell.parse::<u64>(), cell.parse::<f64>()) {
                (Ok(integer), _) => count(integer, &place)?,
                (Err(_), Ok(load)) => load,
                (Err(_), Err(_)) => {
                    return Err(format!(
                        "{place}: expected a number, found {:?}; a line is a layer, a column an expert",
                        shortened(cell)
                    ));
                }
            });
        }
        if let Some(window) = windows.last_mut() {
            window.push(loads);
        }
    }
    if windows.len() > 1 && windows.last().is_some_and(Vec::is_empty) {
        windows.pop();
    }
    Ok(windows)
}

/// What a message shows of a cell: a file of another format may be one long line.
fn shortened(cell: &str) -> String {
    const MOST: usize = 40;
    match cell.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &cell[..end]),
        None => cell.into(),
    }
}

fn first_names(names: &[&str]) -> String {
    const MOST: usize = 3;
    let more = if names.len() > MOST { ", …" } else { "" };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}

fn safetensors(bytes: &[u8], name: Option<&str>) -> Result<Windows, String> {
    let file = SafeTensors::deserialize(bytes)
        .map_err(|error| format!("not a safetensors file: {error}"))?;
    let mut names = file.names();
    names.sort_unstable();
    let name = match (name, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, []) => return Err("there are no tensors".into()),
        (None, several) => {
            return Err(format!(
                "there are {} tensors ({}); choose one with --tensor",
                several.len(),
                first_names(several)
            ));
        }
    };
    let tensor = file.tensor(name).map_err(|_| {
        format!(
            "there is no tensor {name}; there are {}",
            first_names(&names)
        )
    })?;
    let shape = tensor.shape();
    let (windows, layers, experts) = match *shape {
        [layers, experts] => (1, layers, experts),
        [windows, layers, experts] => (windows, layers, experts),
        _ => {
            return Err(format!(
                "tensor {name}: expected shape [layers, experts] or [windows, layers, experts], found {shape:?}"
            ));
        }
    };
    let flat = numbers(tensor.dtype(), tensor.data(), name)?;
    let of_window = layers.checked_mul(experts).unwrap_or(0);
    if of_window == 0 || flat.is_empty() || Some(flat.len()) != of_window.checked_mul(windows) {
        return Err(format!("tensor {name}: shape {shape:?} holds no loads"));
    }
    let window = |loads: &[f64]| loads.chunks_exact(experts).map(<[f64]>::to_vec).collect();
    Ok(flat.chunks_exact(of_window).map(window).collect())
}

fn numbers(dtype: Dtype, data: &[u8], name: &str) -> Result<Vec<f64>, String> {
    fn each<const N: usize>(
        data: &[u8],
        name: &str,
        load: impl Fn([u8; N], &str) -> Result<f64, String>,
    ) -> Result<Vec<f64>, String> {
        let (entries, _) = data.as_chunks::<N>();
        let entries = entries.iter().enumerate();
        entries
            .map(|(index, bytes)| load(*bytes, &format!("tensor {name}, entry {index}")))
            .collect()
    }
    let signed = |value: i64, place: &str| match u64::try_from(value) {
        Ok(value) => count(value, place),
        // Refused with its place in the loads later on.
        Err(_) => Ok(value as f64),
    };
    match dtype {
        Dtype::F64 => each(data, name, |bytes, _| Ok(f64::from_le_bytes(bytes))),
        Dtype::F32 => each(data, name, |bytes, _| {
            Ok(f64::from(f32::from_le_bytes(bytes)))
        }),
        Dtype::I64 => each(data, name, |bytes, place| {
            signed(i64::from_le_bytes(bytes), place)
        }),
        Dtype::U64 => each(data, name, |bytes, place| {
            count(u64::from_le_bytes(bytes), place)
        }),
        Dtype::I32 => each(data, name, |bytes, _| {
            Ok(f64::from(i32::from_le_bytes(bytes)))
        }),
        Dtype::U32 => each(data, name, |bytes, _| {
            Ok(f64::from(u32::from_le_bytes(bytes)))
        }),
        other => Err(format!(
            "tensor {name}: loads of type {other:?} are not read; save them as F32, F64, I32, I64, U32 or U64"
        )),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{csv, json};

    #[test]
    fn json_of_one_or_several_windows() {
        assert_eq!(
            json(b"[[1, 2.5], [3]]").unwrap(),
            [[vec![1.0, 2.5], vec![3.0]]]
        );
        assert_eq!(json(b"[[[1]], [[2]]]").unwrap(), [[vec![1.0]], [vec![2.0]]]);
        assert_eq!(
            json(b"{\"logical_count\": [[[1]]]}").unwrap(),
            [[vec![1.0]]]
        );
    }

    #[test]
    fn byte_order_marks_are_passed_over() {
        assert_eq!(csv(b"\xef\xbb\xbf1,2\n").unwrap(), [[[1.0, 2.0]]]);
        assert_eq!(json(b"\xef\xbb\xbf[[1,2]]").unwrap(), [[[1.0, 2.0]]]);
    }

    #[test]
    fn wrong_json_names_the_place() {
        let cases: [(&str, &str); 8] = [
            ("[[1, null]]", "loads[0][1]: expected a number, found null"),
            (
                "[[1], 2]",
                "loads[1]: expected a list of numbers, found a number",
            ),
            (
                "[[[1]], 2]",
                "loads[1]: expected a list of layers, found a number",
            ),
            (
                "[[9007199254740993]]",
                "loads[0][0]: load 9007199254740993 is above 2^53",
            ),
            (
                "{}",
                "loads: expected [layers][experts] or [windows][layers][experts] numbers, found an object",
            ),
            ("[[1e999]]", "not valid JSON: number out of range"),
            ("[[1]", "not valid JSON: EOF"),
            (
                "{\"physical_to_logical_map\": [], \"logical_count\": []}",
                "this is a placement, not loads",
            ),
        ];
        for (text, start) in cases {
            let message = json(text.as_bytes()).unwrap_err();
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn csv_lines_are_layers_and_empty_lines_part_windows() {
        let text = "# two windows\n1, 2\n3,4\n\n\n5,6\n7,8\n\n";
        let expected = [
            [vec![1.0, 2.0], vec![3.0, 4.0]],
            [vec![5.0, 6.0], vec![7.0, 8.0]],
        ];
        assert_eq!(csv(text.as_bytes()).unwrap(), expected);
        let message = csv(b"1,2\n3,x\n").unwrap_err();
        assert!(
            message.starts_with("line 2, column 2: expected a number, found \"x\""),
            "{message}"
        );
        assert!(csv(&[0xff]).unwrap_err().starts_with("not UTF-8 text"));
        let long = csv("x".repeat(1000).as_bytes()).unwrap_err();
        let shown = format!(
            "line 1, column 1: expected a number, found \"{}…\"; ",
            "x".repeat(40)
        );
        assert!(long.starts_with(&shown), "{long}");
    }
}
