//! The functions of a [`super::Machine`], compiled with its instructions.

/// Implements [`super::Machine`] for an instruction set with the given features.
macro_rules! machine {
    ($machine:ty $(, $features:literal)?) => {
        // SAFETY: a value is made only where the CPU has the features.
        unsafe impl crate::arch::Machine for $machine {
            #[inline]
            unsafe fn dot<W: crate::operand::Element>(self, call: crate::arch::dot::Call<W>)
            where
                Self: crate::arch::Loads<W>,
            {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<W: crate::operand::Element>(call: &crate::arch::dot::Call<W>)
                where
                    $machine: crate::arch::Loads<W>,
                {
                    // SAFETY: passed on.
                    unsafe { <$machine as crate::arch::Loads<W>>::dot(call) }
                }
                // SAFETY: `self` is proof of the features; the rest is passed on.
                unsafe { inner(&call) }
            }

            #[inline]
            unsafe fn outer(self, call: crate::arch::outer::Call) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(call: &crate::arch::outer::Call) {
                    // SAFETY: passed on.
                    unsafe { crate::arch::outer::outer::<$machine>(call) }
                }
                // SAFETY: `self` is proof of the features; the rest is passed on.
                unsafe { inner(&call) }
            }

            #[inline]
            unsafe fn weighted<T: crate::operand::Element>(
                self,
                call: crate::arch::weighted::Call<T>,
            ) where
                Self: crate::arch::Loads<T>,
            {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(call: &crate::arch::weighted::Call<T>)
                where
                    $machine: crate::arch::Loads<T>,
                {
                    // SAFETY: passed on.
                    unsafe { crate::arch::weighted::weighted::<$machine, T>(call) }
                }
                // SAFETY: `self` is proof of the features; the rest is passed on.
                unsafe { inner(&call) }
            }

            #[inline]
            unsafe fn pack_dot<T: crate::operand::Element>(self, rows: &[&[T]], out: *mut u32)
            where
                Self: crate::arch::Loads<T>,
            {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(rows: &[&[T]], out: *mut u32)
                where
                    $machine: crate::arch::Loads<T>,
                {
                    // SAFETY: passed on.
                    unsafe { <$machine as crate::arch::Loads<T>>::pack_dot(rows, out) }
                }
                // SAFETY: `self` is proof of the features; the rest is passed on.
                unsafe { inner(rows, out) }
            }

            #[inline]
            unsafe fn pack_outer<T: crate::operand::Element>(
                self,
                rows: &[&[T]],
                out: *mut u32,
                stride: usize,
            ) where
                Self: crate::arch::Loads<T>,
            {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(
                    rows: &[&[T]],
                    out: *mut u32,
                    stride: usize,
                ) where
                    $machine: crate::arch::Loads<T>,
                {
                    // SAFETY: passed on.
                    unsafe { crate::arch::pack::pack_outer::<$machine, T>(rows, out, stride) }
                }
                // SAFETY: `self` is proof of the features; the rest is passed on.
                unsafe { inner(rows, out, stride) }
            }

            #[inline]
            unsafe fn activate(
                self,
                activation: crate::Activation,
                gate: &mut [f32],
                up: &[f32],
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(activation: crate::Activation, gate: &mut [f32], up: &[f32]) {
                    let round = <$machine as crate::arch::Simd>::UNIT == 2;
                    crate::activation::activate(activation, round, gate, up);
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(activation, gate, up) }
            }

            #[inline]
            unsafe fn peak(self, rounds: usize) -> f32 {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(rounds: usize) -> f32 {
                    // SAFETY: passed on.
                    unsafe { crate::arch::peak::peak::<$machine>(rounds) }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(rounds) }
            }

            #[inline]
            unsafe fn read(self, memory: &[f32]) -> f32 {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(memory: &[f32]) -> f32 {
                    // SAFETY: passed on.
                    unsafe { crate::arch::peak::read::<$machine>(memory) }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(memory) }
            }

            #[inline]
            unsafe fn add_moments(
                self,
                moments: crate::Moments<'_>,
                factors: &[f64],
                vectors: &[f32],
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(moments: crate::Moments<'_>, factors: &[f64], vectors: &[f32]) {
                    crate::moments::add(moments, factors, vectors);
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(moments, factors, vectors) }
            }

            #[inline]
            unsafe fn rescale(self, factor: f32, sums: &mut [f32], values: &[f32]) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(factor: f32, sums: &mut [f32], values: &[f32]) {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = factor * *sum + value;
                    }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(factor, sums, values) }
            }

            #[inline]
            unsafe fn weigh(self, scores: &mut [f32], scale: f32, largest: &mut f32) -> f32 {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(scores: &mut [f32], scale: f32, largest: &mut f32) -> f32 {
                    crate::activation::weigh(scores, scale, largest)
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(scores, scale, largest) }
            }

            #[inline]
            unsafe fn widen<T: crate::operand::Element>(self, from: &[T], to: &mut [f32]) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(from: &[T], to: &mut [f32]) {
                    for (to, from) in to.iter_mut().zip(from) {
                        *to = from.widen();
                    }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(from, to) }
            }

            #[inline]
            unsafe fn round(self, from: &[f32], to: &mut [half::bf16]) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(from: &[f32], to: &mut [half::bf16]) {
                    crate::activation::round(from, to);
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(from, to) }
            }

            #[inline]
            unsafe fn normalize<T: crate::operand::Element>(
                self,
                x: &[T],
                weight: &[f32],
                epsilon: f32,
                out: &mut [f32],
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(
                    x: &[T],
                    weight: &[f32],
                    epsilon: f32,
                    out: &mut [f32],
                ) {
                    crate::activation::normalize(x, weight, epsilon, out);
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(x, weight, epsilon, out) }
            }

            #[inline]
            unsafe fn accumulate(self, weight: f32, values: &[f32], sums: &mut [f32]) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner(weight: f32, values: &[f32], sums: &mut [f32]) {
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum += weight * value;
                    }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(weight, values, sums) }
            }

            #[inline]
            unsafe fn accumulate_wide<T: crate::operand::Element>(
                self,
                weight: f32,
                values: &[T],
                sums: &mut [f64],
            ) {
                $(#[target_feature(enable = $features)])?
                unsafe fn inner<T: crate::operand::Element>(
                    weight: f32,
                    values: &[T],
                    sums: &mut [f64],
                ) {
                    let weight = f64::from(weight);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum += weight * f64::from(value.widen());
                    }
                }
                // SAFETY: `self` is proof of the features.
                unsafe { inner(weight, values, sums) }
            }
        }
    };
}

pub(super) use machine;
