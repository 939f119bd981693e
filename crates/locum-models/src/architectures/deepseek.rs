//! What DeepSeek-V2 and DeepSeek-V3 share, as transformers' `modeling_deepseek_v2.py` and
//! `modeling_deepseek_v3.py` have it.
//!
//! A pre-norm decoder; attention from latents, of which some rotate; the first layers are dense, the
//! others are mixtures of experts, with shared experts beside the routed ones. How experts are chosen
//! is the family's own.

use burn::tensor::Device;
use locum_nn::{
    ExpertNames, FeedForward, GatedMlp, LatentAttention, LatentOptions, LatentShape, RotaryOrder,
    RoutingRule,
};

use crate::config::Fields;
use crate::decoder::DecoderConfig;
use crate::{ModelError, MoeConfig, PreNormLayer};

/// A decoder layer of DeepSeek-V2 or DeepSeek-V3.
pub type DeepseekLayer = PreNormLayer<LatentAttention>;

/// The fields of a DeepSeek-V2 or DeepSeek-V3 `config.json` that are used.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepseekConfig {
    /// What all decoders have.
    pub decoder: DecoderConfig,
    /// Attention.
    pub attention: LatentOptions,
    /// The size of a dense feed-forward between its projections.
    pub intermediate: usize,
    /// Experts that every token goes to.
    pub shared: usize,
    /// Routed experts.
    pub moe: MoeConfig,
    /// Whether routers have a correction of the choice, `e_score_correction_bias`.
    pub correction: bool,
    /// Layers of multi-token prediction after the decoder's.
    pub mtp_layers: u32,
}

/// What a family has where its configuration says nothing.
pub(super) struct Defaults {
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) max_positions: usize,
    pub(super) intermediate: usize,
    pub(super) moe_intermediate: usize,
    pub(super) experts: (&'static str, u32),
    /// None where the field must be there.
    pub(super) chosen: Option<u32>,
    pub(super) shared: u32,
    pub(super) dense: u32,
    pub(super) mtp_layers: u32,
}

impl DeepseekConfig {
    /// Reads what both families have; `routing` makes the family's rule of the number of experts
    /// that a token goes to.
    pub(super) fn read(
        fields: &Fields<'_>,
        defaults: &Defaults,
        order: RotaryOrder,
        routing: impl FnOnce(usize) -> RoutingRule,
    ) -> Result<Self, ModelError> {
        fields.only("hidden_act", &["silu"])?;
        fields.refuse("attention_bias")?;
        fields.refuse("mlp_bias")?;
        fields.refuse_quantization()?;
        let max_positions = fields.size_or("max_position_embeddings", defaults.max_positions)?;
        let shape = latent_shape(fields, defaults)?;
        let mut rotary =
            fields.rotary_with_yarn(("qk_rope_head_dim", shape.rotary), 10_000.0, max_positions)?;
        rotary.order = order;
        let moe = moe(fields, defaults, routing)?;
        Ok(Self {
            attention: LatentOptions {
                shape,
                scale: ((shape.content + shape.rotary) as f64).powf(-0.5)
                    * rotary.yarn.map_or(1.0, |yarn| yarn.softmax_factor()),
                // Of these, transformers' classes leave ε alone, whatever rms_norm_eps is.
                epsilon: 1e-6,
            },
            decoder: DecoderConfig {
                vocabulary: fields.size_or("vocab_size", defaults.vocabulary)?,
                hidden: fields.size_or("hidden_size", defaults.hidden)?,
                layers: moe.experts.len(),
                max_positions,
                epsilon: fields.epsilon(1e-6)?,
                tied: fields.flag("tie_word_embeddings", false)?,
                rotary,
                cached_elements: shape.cached_elements(),
            },
            intermediate: fields.size_or("intermediate_size", defaults.intermediate)?,
            shared: match fields.declared("n_shared_experts") {
                Some(value) if value.is_null() => 0,
                _ => fields.count_or("n_shared_experts", defaults.shared)? as usize,
            },
            moe,
            correction: false,
            mtp_layers: fields.count_or(
                fields.name_in_use(["num_nextn_predict_layers", "num_mtp_layers"])?,
                defaults.mtp_layers,
            )?,
        })
    }

    /// A layer, to be loaded.
    pub(super) fn layer(&self, layer: usize, device: &Device) -> DeepseekLayer {
        let attention = LatentAttention::new(self.decoder.hidden, self.attention, device);
        let mlp = self.feed_forward(layer, device);
        PreNormLayer::with_mlp(&self.decoder, attention, mlp, device)
    }

    fn feed_forward(&self, layer: usize, device: &Device) -> FeedForward {
        let hidden = self.decoder.hidden;
        if self.moe.experts_of(layer) == 0 {
            return FeedForward::Dense(GatedMlp::new(hidden, self.intermediate, device));
        }
        let mut moe = self
            .moe
            .layer(layer, hidden, "mlp", ExpertNames::PROJ, device);
        if self.correction {
            moe = moe.with_router_correction(device);
        }
        if self.shared > 0 {
            moe = moe.with_shared_experts(self.shared, hidden, self.moe.intermediate, device);
        }
        FeedForward::Sparse(moe)
    }
}

fn latent_shape(fields: &Fields<'_>, defaults: &Defaults) -> Result<LatentShape, ModelError> {
    let heads = fields.size_or("num_attention_heads", defaults.heads)?;
    // Keys and values come from the latent, for each head its own.
    fields.fixed("num_key_value_heads", heads.into())?;
    Ok(LatentShape {
        heads,
        content: fields.size_or("qk_nope_head_dim", 128)?,
        rotary: fields.size_or("qk_rope_head_dim", 64)?,
        value: fields.size_or("v_head_dim", 128)?,
        latent: fields.size_or("kv_lora_rank", 512)?,
        // Null says that queries have no latent, and nothing says that they have the usual one.
        query_latent: match fields.declared("q_lora_rank") {
            None => Some(1536),
            Some(_) => fields.optional_size("q_lora_rank")?,
        },
    })
}

/// Routed experts, of which there are none before layer `first_k_dense_replace`, and from it on in
/// every `moe_layer_freq`-th layer. That is the original code's field: transformers' classes do not
/// have it, and published checkpoints say 1.
fn moe(
    fields: &Fields<'_>,
    defaults: &Defaults,
    routing: impl FnOnce(usize) -> RoutingRule,
) -> Result<MoeConfig, ModelError> {
    const CHOSEN: &str = "num_experts_per_tok";
    let layers = fields.layer_count(defaults.layers)?;
    let dense = fields.count_or("first_k_dense_replace", defaults.dense)? as usize;
    let every = fields.size_or("moe_layer_freq", 1)?;
    let sparse: Vec<bool> = (0..layers)
        .map(|layer| layer >= dense && layer.is_multiple_of(every))
        .collect();
    let chosen = match (fields.get(CHOSEN), defaults.chosen) {
        (None, None) => return Err(ModelError::field(CHOSEN, "is missing")),
        (_, default) => (CHOSEN, default.unwrap_or(0)),
    };
    let (name, default) = defaults.experts;
    let experts = fields.name_in_use(["n_routed_experts", name])?;
    let (experts, top_k) = fields.sparse_expert_counts((experts, default), chosen, &sparse)?;
    let moe = MoeConfig {
        experts,
        intermediate: fields.size_or("moe_intermediate_size", defaults.moe_intermediate)?,
        routing: routing(top_k),
        dtype: fields.dtype()?,
    };
    moe.check_groups()?;
    Ok(moe)
}
