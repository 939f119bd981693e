//! The architectures, one file each.

pub mod deepseek;
pub mod deepseek_v2;
pub mod deepseek_v3;
pub mod deepseek_v4;
pub mod minimax_m2;
pub mod mixtral;
pub mod olmoe;
pub mod qwen2_moe;
pub mod qwen3_moe;
