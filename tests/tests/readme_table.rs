//! README's table of architectures, from the registry and from what the tests compare.
//!
//! `cargo xtask readme` writes it: this test, with `UPDATE_README` set.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use locum::checkpoint::read_json;
use locum::models::registry::{ARCHITECTURES, Architecture};
use locum_tests::{PARITY, fixture};
use serde_json::json;

const START: &str = "<!-- architectures: written by `cargo xtask readme` -->\n";
const END: &str = "<!-- /architectures -->\n";

#[test]
fn every_architecture_is_compared_with_transformers() {
    let registered: Vec<&str> = ARCHITECTURES.iter().map(|a| a.model_type).collect();
    let compared: Vec<&str> = PARITY.iter().map(|parity| parity.model_type).collect();
    assert_eq!(registered, compared);
}

#[test]
fn table_of_architectures_is_current() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let (before, rest) = text.split_once(START).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let current = format!("{before}{START}{}{END}{after}", table());
    if std::env::var_os("UPDATE_README").is_some() {
        std::fs::write(&readme, current).unwrap();
        return;
    }
    assert!(
        text == current,
        "README's table of architectures is not what the registry says: run `cargo xtask readme`"
    );
}

fn table() -> String {
    let mut text = String::from(
        "| architecture | `model_type` | MoNE, tested in | f32 logits within |\n|---|---|---|---|\n",
    );
    for (architecture, parity) in ARCHITECTURES.iter().zip(PARITY) {
        let formats: BTreeSet<&str> = parity
            .fixtures
            .iter()
            .filter_map(|name| match name.rsplit('/').next()? {
                "approx" => Some("`approximate_experts`"),
                "explicit" => Some("`expert_substitution`"),
                _ => None,
            })
            .collect();
        let formats: Vec<&str> = formats.into_iter().collect();
        writeln!(
            text,
            "| {} | `{}` | {} | {:e} |",
            architecture.class,
            architecture.model_type,
            formats.join(", "),
            parity.tolerance
        )
        .unwrap();
    }
    text.push_str(
        "\nFields of `config.json` that are used, and fields that are refused unless they change nothing:\n\n",
    );
    for (architecture, parity) in ARCHITECTURES.iter().zip(PARITY) {
        let (used, restricted) = fields(architecture, parity.fixtures);
        writeln!(
            text,
            "<details><summary>{}</summary>\n\nUsed: {used}.\n\nRefused: {restricted}.\n\n</details>\n",
            architecture.class
        )
        .unwrap();
    }
    text
}

/// What an architecture asks for, over its fixtures and an empty config.
fn fields(architecture: &Architecture, fixtures: &[&str]) -> (String, String) {
    let configs = fixtures
        .iter()
        .map(|name| read_json(fixture(name).join("config.json")).unwrap())
        .chain([json!({})]);
    let (mut used, mut restricted) = (BTreeSet::new(), BTreeSet::new());
    for config in configs {
        let log = architecture.fields(&config);
        used.extend(log.used);
        restricted.extend(log.restricted);
    }
    let list = |fields: &BTreeSet<String>, except: &BTreeSet<String>| {
        let names = fields.difference(except).map(|field| format!("`{field}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    (
        list(&used, &restricted),
        list(&restricted, &BTreeSet::new()),
    )
}
