//! Attention layers.

mod attend;
mod grouped_query;

pub use attend::{AttentionShape, attend};
pub use grouped_query::{AttentionOptions, GroupedQueryAttention, HeadNorm};
