//! Checkpoints of tens of thousands of expert tensors.

mod common;

use std::fmt::Write;
use std::time::{Duration, Instant};

use common::{TestResult, file, write};
use locum_checkpoint::Checkpoint;

const SHARDS: usize = 16;
const TENSORS: usize = 20_000;

fn name(tensor: usize) -> String {
    format!(
        "model.layers.{}.mlp.experts.{}.gate_proj.weight",
        tensor % 40,
        tensor / 40
    )
}

#[test]
fn twenty_thousand_tensors_open_without_quadratic_work() -> TestResult {
    let directory = tempfile::tempdir()?;
    let mut weight_map = Vec::new();
    for shard in 0..SHARDS {
        let shard_name = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        let (mut header, mut data) = (String::from("{"), Vec::new());
        for tensor in (shard..TENSORS).step_by(SHARDS) {
            let (name, begin) = (name(tensor), data.len());
            if begin > 0 {
                header.push(',');
            }
            data.extend((tensor as f32).to_le_bytes());
            write!(
                header,
                r#""{name}":{{"dtype":"F32","shape":[1],"data_offsets":[{begin},{}]}}"#,
                data.len()
            )?;
            weight_map.push(format!(r#""{name}":"{shard_name}""#));
        }
        header.push('}');
        write(directory.path(), &shard_name, file(&header, &data));
    }
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, weight_map.join(","));
    write(directory.path(), "model.safetensors.index.json", index);

    let start = Instant::now();
    let checkpoint = Checkpoint::open(directory.path())?;
    let sum: f64 = checkpoint
        .tensors()
        .map(|tensor| Ok(f64::from(tensor?.to_f32().ok_or("not a float")?[0])))
        .sum::<Result<f64, Box<dyn std::error::Error>>>()?;
    for tensor in 0..TENSORS {
        assert_eq!(
            checkpoint.tensor(&name(tensor))?.to_f32(),
            Some(vec![tensor as f32])
        );
    }
    let elapsed = start.elapsed();

    assert_eq!(checkpoint.len(), TENSORS);
    assert_eq!(checkpoint.files().len(), SHARDS);
    assert_eq!(checkpoint.total_bytes(), 4 * TENSORS as u64);
    assert_eq!(sum, (TENSORS * (TENSORS - 1) / 2) as f64);
    // Quadratic work takes minutes; the bound leaves room for a busy machine without optimisation.
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    Ok(())
}
