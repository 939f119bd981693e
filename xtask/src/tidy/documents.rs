//! Documents say what the code says.

use std::path::Path;

/// Where the README's Rust comes from.
const EXAMPLES: [&str; 2] = [
    "tests/downstream/src/lib.rs",
    "tests/downstream/tests/use.rs",
];

pub(super) fn wrong(root: &Path) -> Result<Vec<String>, String> {
    let readme = super::read(&root.join("README.md"))?;
    let sources = EXAMPLES
        .iter()
        .map(|file| super::read(&root.join(file)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut wrong = Vec::new();
    let examples = rust_blocks(&readme);
    if examples.is_empty() {
        wrong.push("README.md has no Rust example".to_owned());
    }
    for example in examples {
        if !sources.iter().any(|source| source.contains(example)) {
            let first = example.lines().next().unwrap_or_default();
            wrong.push(format!(
                "README.md: the example that starts with `{first}` is not in {}",
                EXAMPLES.join(" or ")
            ));
        }
    }

    let architecture = super::read(&root.join("ARCHITECTURE.md"))?;
    let table: Vec<&str> = architecture
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    if table != super::layers::LAYERS {
        wrong.push(format!(
            "ARCHITECTURE.md: the layer table has {table:?}, xtask/src/tidy/layers.rs has {:?}",
            super::layers::LAYERS
        ));
    }
    Ok(wrong)
}

fn rust_blocks(text: &str) -> Vec<&str> {
    text.split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block)
        .collect()
}
