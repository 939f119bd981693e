//! What the benchmark suites share: timing, the machine's limits, and how figures are printed.
#![allow(unsafe_code)]

pub mod block;
pub mod olmoe;
pub mod peer;

use std::hint::black_box;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use half::bf16;
use locum_kernels::Variant;
use rayon::prelude::*;

/// How long a suite may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    budget: Duration,
    quick: bool,
    warm_up: bool,
}

impl Effort {
    /// Reads the program's arguments: `--quick` spends a tenth of the time, on one round where that is what
    /// one takes.
    #[must_use]
    pub fn from_arguments() -> Self {
        let quick = std::env::args().any(|argument| argument == "--quick");
        Self {
            budget: Duration::from_millis(if quick { 300 } else { 3000 }),
            quick,
            warm_up: true,
        }
    }

    /// The same without a warm-up, for what is as slow the second time.
    #[must_use]
    pub fn cold(&self) -> Self {
        Self {
            warm_up: false,
            ..*self
        }
    }

    /// The same for one of some measurements that share the time of one.
    #[must_use]
    pub fn shared_by(&self, measurements: u32) -> Self {
        Self {
            budget: self.budget / measurements,
            ..*self
        }
    }

    /// Whether little time is to be spent.
    #[must_use]
    pub fn is_quick(&self) -> bool {
        self.quick
    }

    /// How many rounds there are after a warm-up, whatever they take.
    fn least(&self) -> usize {
        if self.quick { 1 } else { 3 }
    }

    /// The median of each rate, measured in turns: at least three rounds after a warm-up (one if it is to be
    /// quick), and as many as the budget holds.
    pub fn rates<const N: usize>(&self, measure: [&mut dyn FnMut() -> f64; N]) -> [f64; N] {
        self.turns(measure).medians()
    }

    /// The rates themselves, turn by turn.
    pub fn turns<const N: usize>(&self, mut measure: [&mut dyn FnMut() -> f64; N]) -> Turns<N> {
        let mut turns = Vec::new();
        if self.warm_up {
            for measure in &mut measure {
                measure();
            }
        }
        let start = Instant::now();
        while turns.len() < self.least() || (start.elapsed() < self.budget && turns.len() < 1000) {
            turns.push(measure.each_mut().map(|measure| measure()));
        }
        Turns(turns)
    }

    /// The median time of some work, in seconds: of as many runs as [`rates`](Self::rates) takes.
    pub fn median<T>(&self, mut work: impl FnMut() -> T) -> f64 {
        black_box(work());
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < self.least() || (start.elapsed() < self.budget && times.len() < 1000) {
            let once = Instant::now();
            black_box(work());
            times.push(once.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

/// Rates that were measured in turns.
#[derive(Clone, Debug)]
pub struct Turns<const N: usize>(Vec<[f64; N]>);

impl<const N: usize> Turns<N> {
    /// The median of each.
    #[must_use]
    pub fn medians(&self) -> [f64; N] {
        std::array::from_fn(|rate| self.median(|rates| rates[rate]))
    }

    /// The median of what the rates of one turn make: a limit that moves between turns does not blur what is
    /// compared with it.
    #[must_use]
    pub fn median(&self, of: impl Fn([f64; N]) -> f64) -> f64 {
        median(self.0.iter().map(|&rates| of(rates)).collect())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Numbers in huge pages, where the system has them: as models have their weights.
#[derive(Debug)]
pub struct Numbers<T>(memmap2::MmapMut, PhantomData<T>);

/// A type of number that any bits are, so that fresh memory holds some.
pub trait Number: Copy + Send + Sync {}

impl Number for f32 {}
impl Number for bf16 {}

impl<T: Number> Numbers<T> {
    /// From a function of their places.
    ///
    /// # Panics
    ///
    /// Where the system has no memory for them.
    pub fn new(length: usize, mut number: impl FnMut() -> T) -> Self {
        let memory = memmap2::MmapMut::map_anon((length * size_of::<T>()).max(1));
        let memory = memory.expect("memory for numbers");
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let mut numbers = Self(memory, PhantomData);
        // SAFETY: any bits are numbers; a page is aligned for them.
        let (_, slice, _) = unsafe { numbers.0.align_to_mut::<T>() };
        slice.fill_with(&mut number);
        numbers
    }
}

impl<T: Number> std::ops::Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: any bits are numbers; a page is aligned for them.
        unsafe { self.0.align_to().1 }
    }
}

/// A measurement of the bytes per second that all threads together read from memory, 512 MiB at a time.
pub fn read_bandwidth_once() -> impl FnMut() -> f64 {
    const NUMBERS: usize = 128 << 20;
    static MEMORY: OnceLock<Numbers<f32>> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| Numbers::new(NUMBERS, || 1.0));
    move || {
        let start = Instant::now();
        let variant = Variant::available()[0];
        let chunks = memory.par_chunks(NUMBERS / 64);
        black_box(chunks.map(|chunk| variant.read(chunk)).sum::<f32>());
        (NUMBERS * size_of::<f32>()) as f64 / start.elapsed().as_secs_f64()
    }
}

/// The vector instructions that targets speak of: tiles multiply many times more than they do, so that memory
/// is what limits those.
///
/// # Panics
///
/// Where a machine with tiles has no AVX-512, which none has.
#[must_use]
pub fn vectors(variant: Variant) -> Variant {
    match variant.name() {
        "amx" => Variant::named("avx512").expect("AVX-512 beside AMX"),
        _ => variant,
    }
}

/// All threads' operations per second in registers, of products with `bf16` weights: with activations of
/// `bf16`, or of `f32`.
#[must_use]
pub fn peak(variant: Variant, bf16: bool) -> f64 {
    let threads = rayon::current_num_threads();
    let start = Instant::now();
    let operations: f64 = (0..threads)
        .into_par_iter()
        .with_max_len(1)
        .map(|_| variant.peak(bf16, 400_000))
        .sum();
    operations / start.elapsed().as_secs_f64()
}

/// The machine as `/proc/cpuinfo` names it, and its threads.
#[must_use]
pub fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, name)| name);
    format!("{name}, {} threads", rayon::current_num_threads())
}

/// What a figure is to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least.
    AtLeast(f64),
    /// At most.
    AtMost(f64),
    /// Whatever it is.
    None,
}

impl Target {
    /// Two columns of a table: the target, and whether a figure meets it.
    #[must_use]
    pub fn columns(self, figure: f64) -> String {
        let (sign, bound, met) = match self {
            Self::AtLeast(bound) => ("≥", bound, figure >= bound),
            Self::AtMost(bound) => ("≤", bound, figure <= bound),
            Self::None => return "| ".into(),
        };
        let met = if met { "met" } else { "**missed**" };
        format!("{sign} {bound} | {met}")
    }
}

/// What the read bandwidth's share is to be with one token: the bus has two states, and one core
/// cannot fill the faster one.
#[must_use]
pub fn bandwidth_target(bandwidth: f64) -> f64 {
    if bandwidth > 40e9 { 0.8 } else { 0.9 }
}

/// A measurement of the calls per second of some work.
pub fn calls<T>(mut work: impl FnMut() -> T) -> impl FnMut() -> f64 {
    move || {
        let start = Instant::now();
        black_box(work());
        1.0 / start.elapsed().as_secs_f64()
    }
}
