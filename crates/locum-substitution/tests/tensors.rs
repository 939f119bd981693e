//! Named tensors: their bytes, their types, and what fits neither.

mod common;

use common::{assert_says, bf16, f16, tensor};
use locum_substitution::{Dtype, Listing, NamedTensor, SubstitutionError, TensorInfo};

#[test]
fn bytes_must_be_as_many_as_shape_and_type_ask_for() {
    let new = |dtype, shape: &[usize], bytes: usize| {
        NamedTensor::new(TensorInfo::new("t", dtype, shape), vec![0; bytes])
    };
    assert!(new(Dtype::F32, &[2, 3], 24).is_ok());
    assert!(new(Dtype::Bf16, &[2, 3], 12).is_ok());
    assert!(new(Dtype::F16, &[], 2).is_ok());
    assert!(new(Dtype::F32, &[0, 3], 0).is_ok());
    assert!(new(Dtype::I64, &[2, 3], 48).is_ok());
    assert_says(new(Dtype::I32, &[2, 3], 48), &["`t` has 48 bytes", "i32"]);
    // How many bytes a type that is not known takes, nobody knows.
    assert!(new(Dtype::Other("F4".into()), &[2, 3], 3).is_ok());
    assert_says(
        new(Dtype::F32, &[2, 3], 23),
        &["`t` has 23 bytes", "f32 [2, 3]"],
    );
    assert_says(
        new(Dtype::F16, &[usize::MAX, 2], 0),
        &["`t` has 0 bytes", "f16"],
    );
    assert_says(
        new(Dtype::F32, &[usize::MAX / 2, 1], 4),
        &["`t` has 4 bytes", "f32"],
    );
}

#[test]
fn values_of_every_float_read_as_f32() {
    let values = [1.5, -0.25, f32::INFINITY];
    assert_eq!(tensor("t", &[3], &values).to_f32(), Some(values.to_vec()));
    assert_eq!(f16("t", &values).to_f32(), Some(values.to_vec()));
    assert_eq!(bf16("t", &values).to_f32(), Some(values.to_vec()));
    let integers = TensorInfo::new("t", Dtype::Other("I8".into()), [1]);
    assert!(NamedTensor::new(integers, vec![1]).is_ok_and(|t| t.to_f32().is_none()));
}

#[test]
fn torch_names_of_floats_are_known() {
    for (name, dtype) in [
        ("float32", Some(Dtype::F32)),
        ("torch.float16", Some(Dtype::F16)),
        ("bfloat16", Some(Dtype::Bf16)),
        ("float8_e4m3fn", None),
        ("", None),
    ] {
        assert_eq!(Dtype::from_torch_name(name), dtype);
    }
}

#[test]
fn listing_shows_eight_and_counts_all() {
    let mut listing = Listing::default();
    assert!(listing.is_empty());
    for n in 0..8 {
        listing.push(|| n.to_string());
    }
    assert_eq!(listing.to_string(), "0, 1, 2, 3, 4, 5, 6, 7");
    listing.push(|| panic!("a ninth name is not made"));
    assert_eq!(
        listing.to_string(),
        "0, 1, 2, 3, 4, 5, 6, 7 and 1 more (9 in all)"
    );
    assert_eq!((listing.names().len(), listing.count()), (8, 9));
    assert_says(listing.none_missing(), &["9 weights missing: 0, 1,"]);
    assert!(Listing::default().none_missing().is_ok());
    assert!(Listing::default().none_unexpected().is_ok());
}

#[test]
fn count_that_disagrees_with_its_names_is_no_panic() {
    let error = SubstitutionError::UnexpectedTensors {
        names: vec!["a".into(), "b".into()],
        count: 0,
    };
    assert_eq!(
        error.to_string(),
        "0 tensors are unexpected in this model: a, b"
    );
}

#[test]
fn own_error_comes_back_unwrapped_from_another_loader() {
    let own = SubstitutionError::BothFormats;
    assert!(matches!(
        SubstitutionError::model(own),
        SubstitutionError::BothFormats
    ));
    let own = SubstitutionError::BothFormats;
    assert!(matches!(
        SubstitutionError::stream(own),
        SubstitutionError::BothFormats
    ));
    let other = SubstitutionError::model("out of memory");
    assert!(matches!(other, SubstitutionError::Model(_)));
    assert_eq!(other.to_string(), "out of memory");
}
