//! Time and quality of the planners of `eplb`, one thread, beside their targets.
//!
//! `cargo bench -p locum-benches --bench eplb`; `-- --quick` takes fewer repetitions. The output is
//! Markdown. A time covers all that a caller waits for: checking the input, bounds, planning,
//! validation, and the report.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use eplb::synthetic::{Generator, Shape};
use eplb::{
    Cluster, DeepSeek, Greedy, Incremental, Loads, Placement, Plan, Planner, Problem, Refined,
    Slots,
};

const SEED: u64 = 7;

struct Case {
    layers: usize,
    experts: usize,
    slots: usize,
    ranks: usize,
    nodes: usize,
    groups: usize,
    shape: Shape,
}

impl Case {
    fn flat(layers: usize, experts: usize, slots: usize, ranks: usize, shape: Shape) -> Self {
        Self {
            layers,
            experts,
            slots,
            ranks,
            nodes: 1,
            groups: 1,
            shape,
        }
    }

    fn window(&self) -> Vec<Vec<f64>> {
        Generator::new(SEED).window(self.layers, self.experts, self.shape)
    }

    fn problem(&self, loads: &Loads, current: Option<&Placement>) -> Problem {
        let cluster = Cluster::new(self.ranks, self.nodes).unwrap();
        let builder =
            Problem::builder(loads.clone(), cluster, Slots::Same(self.slots)).groups(self.groups);
        match current {
            Some(current) => builder.current(current.clone()).build().unwrap(),
            None => builder.build().unwrap(),
        }
    }

    fn name(&self) -> String {
        format!(
            "{} × {} → {} on {}, {}",
            self.layers,
            self.experts,
            self.slots,
            self.ranks,
            shape(self.shape)
        )
    }
}

fn shape(shape: Shape) -> String {
    match shape {
        Shape::Lognormal { sigma } => format!("lognormal σ={sigma}"),
        Shape::Zipf { exponent } => format!("Zipf {exponent:.1}"),
        Shape::Dirichlet { concentration } => format!("Dirichlet {concentration}"),
    }
}

struct Bench {
    repetitions: usize,
    missed: usize,
}

impl Bench {
    /// The plan, and the median time in milliseconds.
    fn run(
        &self,
        planner: &dyn Planner,
        case: &Case,
        loads: &Loads,
        current: Option<&Placement>,
    ) -> (Plan, f64) {
        let once = || {
            let start = Instant::now();
            let plan = planner
                .plan(&case.problem(black_box(loads), current))
                .unwrap();
            (black_box(plan), start.elapsed().as_secs_f64() * 1e3)
        };
        let (plan, _) = once();
        let mut times: Vec<f64> = (0..self.repetitions).map(|_| once().1).collect();
        times.sort_by(f64::total_cmp);
        (plan, times[times.len() / 2])
    }

    fn verdict(&mut self, met: bool) -> &'static str {
        if met {
            "yes"
        } else {
            self.missed += 1;
            "**no**"
        }
    }

    fn fresh(
        &mut self,
        planner: &dyn Planner,
        case: &Case,
        milliseconds: Option<f64>,
        gap: Option<f64>,
    ) {
        let loads = Loads::new(case.window()).unwrap();
        let (plan, time) = self.run(planner, case, &loads, None);
        let target = match (milliseconds, gap) {
            (Some(milliseconds), Some(gap)) => {
                format!("about {milliseconds} ms, gap ≤ {} %", gap * 100.0)
            }
            (Some(milliseconds), None) => format!("about {milliseconds} ms"),
            (None, Some(gap)) => format!("gap ≤ {} %", gap * 100.0),
            (None, None) => "–".into(),
        };
        let met = match (milliseconds, gap) {
            (None, None) => "–",
            // A target of about so many milliseconds is met up to a tenth more.
            _ => self.verdict(
                milliseconds.is_none_or(|limit| time <= 1.1 * limit)
                    && gap.is_none_or(|limit| plan.gap <= limit),
            ),
        };
        println!(
            "| {} | `{}` | {time:.2} ms | {:.3} % | {:.4} | {target} | {met} |",
            case.name(),
            planner.name(),
            plan.gap * 100.0,
            plan.balancedness
        );
    }

    fn incremental(&mut self, case: &Case, target: f64) {
        let mut generator = Generator::new(SEED);
        let before = generator.window(case.layers, case.experts, case.shape);
        let after = Loads::new(generator.drift(&before, 0.5)).unwrap();
        let current = Refined
            .plan(&case.problem(&Loads::new(before).unwrap(), None))
            .unwrap()
            .placement;
        let slots = case.layers * case.slots;
        let planner = Incremental {
            max_moves: Some(slots * 11 / 100),
            ..Incremental::default()
        };
        let (plan, time) = self.run(&planner, case, &after, Some(&current));
        let (full, _) = self.run(&Refined, case, &after, Some(&current));
        let met = self.verdict(plan.balancedness >= target);
        println!(
            "| {} | {time:.1} ms | {:.4} | {:.4} | {} ({:.1} %) | {:.4} with {} moves ({:.0} %) | balancedness ≥ {target} | {met} |",
            case.name(),
            plan.balancedness_before.unwrap(),
            plan.balancedness,
            plan.moves,
            100.0 * plan.moves as f64 / slots as f64,
            full.balancedness,
            full.moves,
            100.0 * full.moves as f64 / slots as f64,
        );
    }
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|line| line.split(':').nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!(
        "{}, {cores} cores, {}",
        model.unwrap_or(" unknown processor").trim(),
        std::env::consts::ARCH
    )
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let mut bench = Bench {
        repetitions: if quick { 3 } else { 31 },
        missed: 0,
    };
    println!("## eplb\n");
    println!(
        "Machine: {}. One thread, medians of {} runs, seed {SEED}.\n",
        machine(),
        bench.repetitions
    );

    let lognormal = Shape::Lognormal { sigma: 1.0 };
    let zipf = |exponent| Shape::Zipf { exponent };
    let dirichlet = |concentration| Shape::Dirichlet { concentration };
    let header = "| layers × experts → slots on ranks, loads | planner | time | gap | balancedness | target | met |\n|---|---|--:|--:|--:|---|---|";

    println!("{header}");
    let first = Case::flat(58, 256, 288, 32, lognormal);
    bench.fresh(&DeepSeek, &first, None, None);
    bench.fresh(&Greedy, &first, Some(2.0), None);
    for shape in [
        lognormal,
        zipf(0.6),
        zipf(1.0),
        dirichlet(0.3),
        dirichlet(1.0),
    ] {
        bench.fresh(
            &Refined,
            &Case::flat(58, 256, 288, 32, shape),
            Some(10.0),
            Some(0.001),
        );
    }
    for shape in [
        lognormal,
        zipf(0.6),
        zipf(1.0),
        dirichlet(0.3),
        dirichlet(1.0),
    ] {
        bench.fresh(
            &Refined,
            &Case::flat(61, 384, 416, 32, shape),
            Some(25.0),
            Some(0.001),
        );
    }

    println!("\nWhere greedy is far off:\n\n{header}");
    for (slots, ranks, shape) in [
        (288, 32, zipf(1.2)),
        (320, 64, lognormal),
        (320, 64, zipf(1.0)),
        (320, 64, zipf(1.2)),
        (320, 64, dirichlet(0.3)),
        (320, 64, dirichlet(1.0)),
    ] {
        let case = Case::flat(58, 256, slots, ranks, shape);
        bench.fresh(&Greedy, &case, None, None);
        bench.fresh(&Refined, &case, None, Some(0.01));
    }

    println!(
        "\nEight expert groups on four nodes; the gap is to the bound that counts the node limits:\n\n{header}"
    );
    for (shape, limit) in [
        (lognormal, Some(0.01)),
        (zipf(1.0), Some(0.01)),
        (zipf(1.2), None),
    ] {
        let case = Case {
            nodes: 4,
            groups: 8,
            ..Case::flat(58, 256, 288, 32, shape)
        };
        bench.fresh(&DeepSeek, &case, None, None);
        bench.fresh(&Refined, &case, None, limit);
    }

    println!(
        "\n`Incremental` after loads drifted by lognormal noise of sd 0.5, moves at most 11 % of the slots; beside it a `Refined` plan from scratch:\n"
    );
    println!("| case | time | balancedness before | after | moves | from scratch | target | met |");
    println!("|---|--:|--:|--:|--:|---|---|---|");
    bench.incremental(&Case::flat(58, 256, 288, 32, lognormal), 0.96);
    bench.incremental(&Case::flat(58, 256, 288, 32, zipf(1.0)), 0.94);

    match bench.missed {
        0 => println!("\nAll targets are met."),
        missed => println!("\n{missed} targets are missed."),
    }
}
