//! A crate uses only crates above it in ARCHITECTURE.md's table, and knows nothing that it must not.

use serde_json::Value;

/// From the top down.
pub(super) const LAYERS: [&str; 10] = [
    "eplb",
    "locum-substitution",
    "locum-macros",
    "locum-checkpoint",
    "locum-kernels",
    "locum-nn",
    "locum-models",
    "locum-prune",
    "locum",
    "locum-cli",
];

/// Members that are not layers: they may use anything.
const OUTSIDE: [&str; 4] = ["xtask", "locum-tests", "locum-benches", "locum-downstream"];

/// What a crate must not depend on, unless behind a feature of its own.
const FORBIDDEN: [(&str, &[&str]); 4] = [
    ("eplb", &["burn", "safetensors"]),
    ("locum-substitution", &["burn", "safetensors", "memmap2"]),
    ("locum-checkpoint", &["burn"]),
    ("locum-kernels", &["burn", "safetensors", "memmap2"]),
];

/// Takes the output of `cargo metadata --no-deps`.
pub(super) fn wrong(metadata: &str) -> Result<Vec<String>, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
    let mut wrong = Vec::new();
    for package in list(&metadata, "packages") {
        let name = text(package, "name");
        if OUTSIDE.contains(&name) {
            continue;
        }
        let Some(layer) = layer_of(name) else {
            wrong.push(format!(
                "{name} is not in the layer table (xtask/src/tidy/layers.rs, ARCHITECTURE.md)"
            ));
            continue;
        };
        if !text(package, "manifest_path").contains(&format!("/crates/{name}/")) {
            wrong.push(format!("{name} is not in the folder crates/{name}"));
        }
        for dependency in list(package, "dependencies") {
            let used = text(dependency, "name");
            if layer_of(used).is_some_and(|used| used >= layer) {
                wrong.push(format!("{name} depends on {used}, which is not above it"));
            }
            let optional = dependency["optional"].as_bool() == Some(true);
            let forbidden = FORBIDDEN
                .iter()
                .any(|(of, names)| *of == name && names.contains(&used));
            if forbidden && !optional && dependency["kind"].is_null() {
                wrong.push(format!("{name} depends on {used}, which it must not know"));
            }
        }
    }
    Ok(wrong)
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::wrong;

    fn package(name: &str, dependency: &str) -> String {
        format!(
            r#"{{"packages":[{{"name":"{name}","manifest_path":"/r/crates/{name}/Cargo.toml",
            "dependencies":[{{"name":"{dependency}","kind":null,"optional":false}}]}}]}}"#
        )
    }

    #[test]
    fn dependency_on_a_layer_above_is_allowed() {
        assert_eq!(
            wrong(&package("locum-nn", "locum-substitution")),
            Ok(vec![])
        );
    }

    #[test]
    fn dependency_on_a_layer_below_is_named() {
        assert_eq!(
            wrong(&package("locum-nn", "locum-models")),
            Ok(vec![
                "locum-nn depends on locum-models, which is not above it".into()
            ])
        );
    }

    #[test]
    fn forbidden_knowledge_is_named() {
        assert_eq!(
            wrong(&package("locum-checkpoint", "burn")),
            Ok(vec![
                "locum-checkpoint depends on burn, which it must not know".into()
            ])
        );
    }
}
