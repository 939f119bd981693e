//! What calibration knows of a model's experts.

/// Statistics of a whole model, read from a file or just made.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// The MoE layers that have retained experts, in order.
    pub layers: Vec<LayerStatistics>,
}

/// One MoE layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerStatistics {
    /// The global decoder layer.
    pub layer: u32,
    /// Where a checkpoint has the experts: `model.layers.3.mlp.experts`.
    pub prefix: String,
    /// The size of a token.
    pub hidden: usize,
    /// All tokens that the layer saw, whatever their experts.
    pub tokens: u64,
    /// By logical id, all experts that the router chooses from. Of an expert that is a constant already,
    /// only `tokens` and `score_sum` are counted.
    pub experts: Vec<ExpertStatistics>,
}

/// Sums over the tokens that were routed to an expert: `w` is the router weight of the forward pass, `y`
/// the expert's output before it is weighted.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertStatistics {
    /// Routed tokens.
    pub tokens: u64,
    /// `Σ w`
    pub score_sum: f64,
    /// `Σ w²`
    pub squared_score_sum: f64,
    /// `Σ ‖y‖`
    pub norm_sum: f64,
    /// `Σ w·‖y‖`
    pub weighted_norm_sum: f64,
    /// `Σ ‖y‖²`
    pub squared_norm_sum: f64,
    /// `Σ w²·‖y‖²`
    pub weighted_squared_norm_sum: f64,
    /// `Σ y`, `[hidden]`
    pub output_sum: Vec<f64>,
    /// `Σ w²·y`, `[hidden]`
    pub weighted_output_sum: Vec<f64>,
}
