use locum_macros::expert_substitution;
use locum_substitution::{SubstitutionError, SubstitutionSpec};

#[expert_substitution(crate = locum_substitution)]
pub(crate) struct Model<T: Copy> {
    layers: Vec<T>,
}

// The wrapper is there all the same: one mistake is one error.
fn wrap(model: Model<u8>) -> Result<(), SubstitutionError>
where
    for<'a> Model<u8>: locum_substitution::PipelineStage,
{
    let wrapped = SubstitutedModel::try_new(model, &SubstitutionSpec::default())?;
    let _: &Vec<u8> = &wrapped.layers;
    Ok(())
}

fn main() {}
