//! Seeded loads with the shapes that routers produce, for tests, benchmarks and trials.
//!
//! The generator is SplitMix64 (Steele, Lea and Flood 2014): the same seed gives the same loads on
//! every machine, up to the last bits of `exp`, `ln`, `cos` and `powf` of the platform.

/// The shape of a layer's loads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// `exp(σ·n)` with `n` standard normal.
    Lognormal {
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// `rank^-s`, ranks shuffled over the experts.
    Zipf {
        /// The exponent `s`.
        exponent: f64,
    },
    /// A draw of the symmetric Dirichlet distribution, scaled by the number of experts.
    Dirichlet {
        /// The concentration; small values give few heavy experts.
        concentration: f64,
    },
}

/// A seeded source of loads.
#[derive(Debug, Clone)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// A source that depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Uniform on the open interval from 0 to 1.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// An integer below `end`; 0 when `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Standard normal (Box and Muller 1958).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Gamma with scale 1 (Marsaglia and Tsang 2000; shapes below 1 by `G(a) = G(a+1)·U^(1/a)`).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            return self.gamma(shape + 1.0) * self.uniform().powf(1.0 / shape);
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let normal = self.normal();
            let cube = (1.0 + c * normal).powi(3);
            if cube > 0.0
                && self.uniform().ln() < 0.5 * normal * normal + d - d * cube + d * cube.ln()
            {
                return d * cube;
            }
        }
    }

    /// One layer of loads. Shape `[experts]`.
    pub fn layer(&mut self, experts: usize, shape: Shape) -> Vec<f64> {
        match shape {
            Shape::Lognormal { sigma } => (0..experts)
                .map(|_| (sigma * self.normal()).exp())
                .collect(),
            Shape::Zipf { exponent } => {
                let mut loads: Vec<f64> = (1..=experts)
                    .map(|rank| (rank as f64).powf(-exponent))
                    .collect();
                for last in (1..experts).rev() {
                    let other = self.below(last + 1);
                    loads.swap(last, other);
                }
                loads
            }
            Shape::Dirichlet { concentration } => {
                let mut loads: Vec<f64> = (0..experts).map(|_| self.gamma(concentration)).collect();
                let total: f64 = loads.iter().sum();
                if total > 0.0 {
                    for load in &mut loads {
                        *load *= experts as f64 / total;
                    }
                }
                loads
            }
        }
    }

    /// One window of loads. Shape `[layers][experts]`.
    pub fn window(&mut self, layers: usize, experts: usize, shape: Shape) -> Vec<Vec<f64>> {
        (0..layers).map(|_| self.layer(experts, shape)).collect()
    }

    /// The loads after a drift: each times `exp(sd·n)` with `n` standard normal.
    pub fn drift(&mut self, window: &[Vec<f64>], deviation: f64) -> Vec<Vec<f64>> {
        window
            .iter()
            .map(|layer| {
                layer
                    .iter()
                    .map(|load| load * (deviation * self.normal()).exp())
                    .collect()
            })
            .collect()
    }
}
