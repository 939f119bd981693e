//! The visit of MoE layers: order and paths through what may hold them.

mod common;

use common::Experts;
use locum_substitution::{ModulePath, MoeLayers, Stage};

fn visited(holder: &mut impl MoeLayers) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    holder.visit_moe_layers(&mut ModulePath::default(), &mut |path, experts| {
        found.push((path.to_string(), experts.info().layer));
    });
    found
}

fn expected(layers: &[(&str, u32)]) -> Vec<(String, u32)> {
    layers
        .iter()
        .map(|(path, layer)| ((*path).to_owned(), *layer))
        .collect()
}

#[test]
fn containers_of_layers_are_visited_in_order_with_their_paths() {
    let layer = |layer| Experts::new(layer, 5);
    assert_eq!(visited(&mut layer(7)), expected(&[("", 7)]));
    assert_eq!(
        visited(&mut vec![layer(1), layer(2)]),
        expected(&[("0", 1), ("1", 2)])
    );
    assert_eq!(
        visited(&mut [layer(1), layer(2)]),
        expected(&[("0", 1), ("1", 2)])
    );
    assert_eq!(visited(&mut Some(layer(3))), expected(&[("", 3)]));
    assert_eq!(visited(&mut None::<Experts>), []);
    assert_eq!(
        visited(&mut vec![None, Some([layer(4), layer(5)])]),
        expected(&[("1.0", 4), ("1.1", 5)])
    );
}

#[test]
fn path_forgets_a_segment_after_its_visit() {
    let mut path = ModulePath::default();
    path.within("layers", |path| {
        path.within("3", |path| assert_eq!(path.to_string(), "layers.3"));
        assert_eq!(path.to_string(), "layers");
    });
    assert_eq!(path, ModulePath::default());
}

#[test]
fn whole_model_builds_every_layer() {
    assert_eq!(
        Stage::whole(4),
        Stage {
            total_layers: 4,
            built: 0..4
        }
    );
}
