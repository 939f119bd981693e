//! The architectures, one file each.

pub mod olmoe;
