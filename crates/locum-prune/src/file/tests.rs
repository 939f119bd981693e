//! The statistics file, written and read back, and what is none.

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

fn origin() -> Origin {
    Origin {
        length: 4,
        sequences: 9,
        covered: vec![2..5, 7..9],
        ..Origin::default()
    }
}

fn write_to(sums: &Sums, origin: &Origin, out: &mut dyn Write) {
    let layers: Vec<LayerHeader> = sums.layers.iter().map(LayerHeader::of).collect();
    let layer = |place: usize| Ok(Cow::Borrowed(&sums.layers[place]));
    write(origin, None, &layers, layer, Path::new("memory"), out).expect("written");
}

fn written(sums: &Sums) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_to(sums, &origin(), &mut bytes);
    bytes
}

fn read(bytes: &[u8]) -> Result<(Origin, Sums), String> {
    let contents = parse(bytes)?;
    let layers = contents.layers.iter().zip(&contents.places);
    let layers = layers.map(|(layer, places)| parse_layer(layer, places, bytes));
    let layers = layers.collect::<Result<_, _>>()?;
    Ok((contents.origin, Sums { layers }))
}

#[test]
fn what_is_written_is_read() {
    let bytes = written(&sums());
    assert_eq!(read(&bytes), Ok((origin(), sums())));
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
    write_to(&sums, &origin(), &mut counter);
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
    let other = safetensors::serialize::<&str, safetensors::tensor::TensorView<'_>, _>([], None);
    let error = parse(&other.expect("serialized")).expect_err("no entry");
    assert!(error.contains(ENTRY), "{error}");
    let replaced = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes());
        let at = at.expect("in the file");
        let mut bytes = bytes.clone();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        read(&bytes).expect_err("refused")
    };
    let error = replaced(r#"version\":2"#, r#"version\":9"#);
    assert!(error.contains("version is 9"), "{error}");
    for (from, to) in [
        (r#"hidden\":2"#, r#"hidden\":9"#),
        (r#"experts\":3"#, r#"experts\":9"#),
        (r#"substituted\":[1]"#, r#"substituted\":[9]"#),
    ] {
        let error = replaced(from, to);
        assert!(error.contains("layer 3"), "{error}");
    }
    for (from, to, part) in [
        (r#"start\":2"#, r#"start\":8"#, "8..5"),
        (r#"start\":7"#, r#"start\":4"#, "4..9"),
        (r#"start\":7"#, r#"start\":5"#, "5..9"),
        (r#"sequences\":9"#, r#"sequences\":8"#, "7..9"),
        (r#"length\":4"#, r#"length\":2"#, "12 tokens in layer 3"),
        (r#"tokens\":12"#, r#"tokens\":05"#, ENTRY),
    ] {
        let error = replaced(from, to);
        assert!(error.contains(part), "{error}");
    }
    let mut more = sums();
    more.layers[0].experts[1].tokens = 13;
    let error = read(&written(&more)).expect_err("more than the layer saw");
    assert!(error.contains("expert 1 of layer 3"), "{error}");
    more.layers
        .push(LayerSums::new(2, "p".into(), 1, 1, Vec::new()));
    let error = read(&written(&more)).expect_err("order");
    assert!(error.contains("layer 2 comes after layer 3"), "{error}");
}

/// A tensor without elements may have any other size.
#[test]
fn size_of_nothing_takes_no_memory() {
    let layer = LayerSums::new(0, "p".into(), 1 << 60, 2, vec![0, 1]);
    let sums = Sums {
        layers: vec![layer],
    };
    let (_, read) = read(&written(&sums)).expect("read");
    assert_eq!(read, sums);
    assert!(read.layers[0].statistics().experts[1].output_sum.is_empty());
    let opened = opened(&written(&sums)).expect("opened");
    assert_eq!(opened, sums.statistics(origin()));
}

/// Statistics of a file with these bytes, all of which is read.
fn opened(bytes: &[u8]) -> Result<Statistics, PruneError> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), bytes).expect("written");
    let statistics = Statistics::open(file.path())?;
    let experts = statistics.layers.iter().flat_map(|layer| &layer.experts);
    for expert in experts {
        assert_eq!(expert.output_sum.read().len(), expert.output_sum.len());
        let _ = (
            expert.mean(),
            expert.std_norm(),
            expert.weighted_output_sum.read(),
        );
    }
    Ok(statistics)
}

#[test]
fn statistics_in_a_file_are_those_that_were_written() {
    let mut sums = sums();
    let mut more = LayerSums::new(7, "model.layers.7.mlp.experts".into(), 5, 4, vec![0, 2]);
    for (id, expert) in more.experts.iter_mut().enumerate() {
        let channels = expert.output.len();
        let number = |channel: usize| ((10 * id + channel) as i128 - 7) << (60 + channel);
        expert.output = (0..channels).map(number).collect();
        expert.weighted_output = (0..channels).map(|channel| -number(channel)).collect();
    }
    sums.layers.push(more);
    let opened = opened(&written(&sums)).expect("opened");
    assert_eq!(opened, sums.statistics(origin()));
    let last = &opened.layers[1].experts[3];
    let found = (last.output_sum.read(), last.weighted_output_sum.read());
    // Of 2⁻⁷²: 23 · 2⁶⁰, 24 · 2⁶¹, …
    let expected = [23.0, 48.0, 100.0, 208.0, 432.0].map(|sum| sum / 4096.0);
    assert_eq!(*found.0, expected);
    assert_eq!(*found.1, expected.map(|sum| -sum));
}

#[test]
fn any_byte_may_be_wrong() {
    let whole = written(&sums());
    let mut random = 1u64;
    for turn in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..2 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let place = (random >> 33) as usize % bytes.len();
            bytes[place] = (random >> 20) as u8;
        }
        if turn % 50 == 0 {
            assert_eq!(opened(&bytes).is_ok(), bytes == whole);
        }
        if let Ok((origin, sums)) = read(&bytes) {
            assert!(origin.counted() <= origin.sequences);
            for layer in &sums.layers {
                let _ = layer.clone().add(layer);
            }
            sums.statistics(origin);
        }
    }
}

#[test]
fn one_wrong_bit_of_a_sum_is_seen() {
    let mut bytes = written(&sums());
    let last_sum = bytes.len() - CHECKSUM_SIZE - 1;
    bytes[last_sum] ^= 1;
    assert!(read(&bytes).is_ok(), "what it says is in order");
    let error = opened(&bytes).expect_err("damaged").to_string();
    assert!(error.contains("checksum"), "{error}");
}
