//! The README's example of this crate.
#![allow(clippy::print_stdout)]

use eplb::{Cluster, Loads, Planner, Problem, Refined, Slots};

#[test]
fn example_of_the_readme_plans_near_the_optimum() -> Result<(), eplb::Error> {
    // One layer of eight experts, two slots on each of eight ranks.
    let loads = Loads::new(vec![vec![
        600.0, 560.0, 120.0, 120.0, 20.0, 10.0, 10.0, 10.0,
    ]])?;
    let problem = Problem::builder(loads, Cluster::new(8, 1)?, Slots::Same(16)).build()?;
    let plan = Refined.plan(&problem)?;
    println!("{}: {}", plan.balancedness, plan.reason);
    // The mean rank load, 1450 / 8, over the largest of the exhaustive optimum, 196.667.
    assert!((plan.balancedness - 181.25 / (590.0 / 3.0)).abs() < 1e-9);
    Ok(())
}
