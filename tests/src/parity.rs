//! The architectures that are compared with transformers, on what, and how closely.

/// An architecture's fixtures.
#[derive(Clone, Copy, Debug)]
pub struct Parity {
    /// Its `model_type`.
    pub model_type: &'static str,
    /// Directories below `tests/fixtures`.
    pub fixtures: &'static [&'static str],
    /// The largest absolute difference of an f32 logit. Evaluation order moves them by up to 2e-5;
    /// their standard deviation is about 2.
    pub tolerance: f32,
}

/// Every architecture of the registry; a test compares the two lists.
pub const PARITY: &[Parity] = &[
    Parity {
        model_type: "olmoe",
        fixtures: &["olmoe/base", "olmoe/approx", "olmoe/explicit"],
        tolerance: 1e-4,
    },
    Parity {
        model_type: "qwen2_moe",
        fixtures: &["qwen2_moe/base", "qwen2_moe/approx"],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "qwen3_moe",
        fixtures: &["qwen3_moe/base", "qwen3_moe/approx"],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "mixtral",
        fixtures: &["mixtral/base", "mixtral/approx"],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "minimax_m2",
        fixtures: &["minimax_m2/base", "minimax_m2/approx"],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "deepseek_v2",
        fixtures: &[
            "deepseek_v2/base",
            "deepseek_v2/approx",
            "deepseek_v2_lite/base",
            "deepseek_v2_lite/approx",
        ],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "deepseek_v3",
        fixtures: &[
            "deepseek_v3/base",
            "deepseek_v3/approx",
            "deepseek_v3/explicit",
            "deepseek_v3_moonlight/base",
            "deepseek_v3_moonlight/approx",
        ],
        tolerance: 2e-4,
    },
    Parity {
        model_type: "deepseek_v4",
        fixtures: &["deepseek_v4/base", "deepseek_v4/approx"],
        tolerance: 2e-4,
    },
];

/// One fixture.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its directory below `tests/fixtures`.
    pub name: &'static str,
    /// The name of its logits in the reference.
    pub logits: &'static str,
    /// How closely they must agree.
    pub tolerance: f32,
}

/// Every fixture.
pub fn cases() -> impl Iterator<Item = Case> {
    PARITY.iter().flat_map(|parity| {
        parity.fixtures.iter().map(|name| Case {
            name,
            logits: if name.ends_with("/base") {
                "full_logits"
            } else {
                "substituted_logits"
            },
            tolerance: parity.tolerance,
        })
    })
}
