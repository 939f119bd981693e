//! The licences of everything that a default build links: an exact list.

use std::collections::BTreeMap;
use std::path::Path;

/// As the packages write them.
const LICENCES: &[&str] = &[
    "(MIT OR Apache-2.0) AND Unicode-3.0",
    "0BSD OR MIT OR Apache-2.0",
    "Apache-2.0",
    "Apache-2.0 / MIT",
    "Apache-2.0 OR BSL-1.0",
    "Apache-2.0 OR MIT",
    "Apache-2.0 OR MIT OR Zlib",
    "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
    "Apache-2.0/MIT",
    "BSD-2-Clause OR Apache-2.0 OR MIT",
    "MIT",
    "MIT OR Apache-2.0",
    "MIT OR Zlib OR Apache-2.0",
    "MIT/Apache-2.0",
    "MPL-2.0",
    "Unlicense OR MIT",
    "Zlib",
    "Zlib OR Apache-2.0 OR MIT",
];

pub(super) fn wrong(root: &Path) -> Result<Vec<String>, String> {
    let tree = crate::run::cargo_output(
        root,
        "tree --workspace --edges normal,build --prefix none --locked --format {p}|{l}",
    )?;
    let mut used: BTreeMap<&str, &str> = BTreeMap::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let Some((package, licence)) = line.split_once('|') else {
            continue;
        };
        let licence = licence.trim_end_matches(" (*)").trim();
        used.entry(licence).or_insert(package);
    }
    let mut wrong: Vec<String> = used
        .iter()
        .filter(|(licence, _)| !LICENCES.contains(licence))
        .map(|(licence, package)| {
            format!("{package} has licence {licence:?}, which is not in xtask/src/tidy/licences.rs")
        })
        .collect();
    wrong.extend(
        LICENCES
            .iter()
            .filter(|licence| !used.contains_key(**licence))
            .map(|licence| format!("licence {licence:?} is listed, but nothing has it any more")),
    );
    Ok(wrong)
}
