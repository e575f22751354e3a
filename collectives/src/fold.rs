//! The arithmetic of reductions: arrays of several ranks, element by element, in their order.
//!
//! Values are combined from the first array to the last, so that whoever folds the same arrays in
//! the same order gets the same bits.

use bytemuck::Pod;
use half::{bf16, f16};

use crate::dtype::{Arithmetic, ReduceOp};

/// Combines `sources`, at least one, into `out`. `divisor` divides the result, for a mean.
///
/// # Panics
/// Unless all are as long as `out`, in whole elements.
pub(crate) fn fold(
    op: ReduceOp,
    arithmetic: Arithmetic,
    sources: &[&[u8]],
    divisor: Option<u32>,
    out: &mut [u8],
) {
    match arithmetic {
        Arithmetic::F32 => plain::<f32>(op, sources, divisor, out),
        Arithmetic::F64 => plain::<f64>(op, sources, divisor, out),
        Arithmetic::F16 => widened::<f16>(op, sources, divisor, out),
        Arithmetic::BF16 => widened::<bf16>(op, sources, divisor, out),
        Arithmetic::I8 => plain::<i8>(op, sources, divisor, out),
        Arithmetic::I16 => plain::<i16>(op, sources, divisor, out),
        Arithmetic::I32 => plain::<i32>(op, sources, divisor, out),
        Arithmetic::I64 => plain::<i64>(op, sources, divisor, out),
        Arithmetic::U8 => plain::<u8>(op, sources, divisor, out),
        Arithmetic::U16 => plain::<u16>(op, sources, divisor, out),
        Arithmetic::U32 => plain::<u32>(op, sources, divisor, out),
        Arithmetic::U64 => plain::<u64>(op, sources, divisor, out),
    }
}

/// A number that the processor computes with.
trait Number: Pod {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn divided(self, divisor: u32) -> Self;
}

macro_rules! integers {
    ($($number:ty)*) => {$(
        impl Number for $number {
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            /// Means of integers are refused before.
            fn divided(self, _divisor: u32) -> Self {
                self
            }
        }
    )*};
}

macro_rules! floats {
    ($($number:ty)*) => {$(
        impl Number for $number {
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            // A NaN on either side wins, in either order.
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            fn divided(self, divisor: u32) -> Self {
                self / divisor as Self
            }
        }
    )*};
}

integers!(i8 i16 i32 i64 u8 u16 u32 u64);
floats!(f32 f64);

/// A number that is computed with as `f32` and rounded once, at the end.
trait Narrow: Pod {
    fn wide(self) -> f32;
    fn narrow(wide: f32) -> Self;
}

impl Narrow for f16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }
}

impl Narrow for bf16 {
    fn wide(self) -> f32 {
        self.to_f32()
    }
    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }
}

fn plain<T: Number>(op: ReduceOp, sources: &[&[u8]], divisor: Option<u32>, out: &mut [u8]) {
    with_aligned::<T>(out, |out| {
        let Some((&first, rest)) = sources.split_first() else {
            return;
        };
        let Some((&second, rest)) = rest.split_first() else {
            aligned(first, |first: &[T]| out.copy_from_slice(first));
            return divide(out, divisor);
        };
        aligned(first, |first: &[T]| {
            aligned(second, |second| combine(op, first, second, out));
        });
        for &source in rest {
            aligned(source, |source| accumulate(op, out, source));
        }
        divide(out, divisor);
    });
}

fn divide<T: Number>(out: &mut [T], divisor: Option<u32>) {
    if let Some(divisor) = divisor {
        out.iter_mut()
            .for_each(|value| *value = value.divided(divisor));
    }
}

fn combine<T: Number>(op: ReduceOp, first: &[T], second: &[T], out: &mut [T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => zip(first, second, out, T::sum),
        ReduceOp::Min => zip(first, second, out, T::smaller),
        ReduceOp::Max => zip(first, second, out, T::larger),
        ReduceOp::Prod => zip(first, second, out, T::product),
    }
}

fn accumulate<T: Number>(op: ReduceOp, out: &mut [T], source: &[T]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => onto(out, source, T::sum),
        ReduceOp::Min => onto(out, source, T::smaller),
        ReduceOp::Max => onto(out, source, T::larger),
        ReduceOp::Prod => onto(out, source, T::product),
    }
}

#[inline(always)]
fn zip<T: Copy>(first: &[T], second: &[T], out: &mut [T], with: impl Fn(T, T) -> T) {
    assert!(first.len() == out.len() && second.len() == out.len());
    for ((out, &first), &second) in out.iter_mut().zip(first).zip(second) {
        *out = with(first, second);
    }
}

#[inline(always)]
fn onto<T: Copy>(out: &mut [T], source: &[T], with: impl Fn(T, T) -> T) {
    assert_eq!(source.len(), out.len());
    for (out, &source) in out.iter_mut().zip(source) {
        *out = with(*out, source);
    }
}

/// Goes block by block, so that the wide values stay in the first cache.
fn widened<T: Narrow>(op: ReduceOp, sources: &[&[u8]], divisor: Option<u32>, out: &mut [u8]) {
    let block_bytes = WIDE_BLOCK * size_of::<T>();
    let mut wide = [0.0f32; WIDE_BLOCK];
    let mut next = [0.0f32; WIDE_BLOCK];
    let len = out.len();
    for start in (0..len).step_by(block_bytes) {
        let end = len.min(start + block_bytes);
        let count = (end - start) / size_of::<T>();
        let (wide, next) = (&mut wide[..count], &mut next[..count]);
        for (index, source) in sources.iter().enumerate() {
            let into = if index == 0 { &mut *wide } else { &mut *next };
            aligned(&source[start..end], |source: &[T]| {
                for (wide, &value) in into.iter_mut().zip(source) {
                    *wide = value.wide();
                }
            });
            if index > 0 {
                accumulate(op, wide, next);
            }
        }
        divide(wide, divisor);
        with_aligned::<T>(&mut out[start..end], |out| {
            for (out, &wide) in out.iter_mut().zip(&*wide) {
                *out = T::narrow(wide);
            }
        });
    }
}

/// Calls `code` with the elements, copied only if they do not lie as they must.
fn aligned<T: Pod>(bytes: &[u8], code: impl FnOnce(&[T])) {
    match bytemuck::try_cast_slice(bytes) {
        Ok(elements) => code(elements),
        Err(_) => code(&copied::<T>(bytes)),
    }
}

/// Calls `code` with room for elements, which are copied only if they cannot lie in `out`.
fn with_aligned<T: Pod>(out: &mut [u8], code: impl FnOnce(&mut [T])) {
    if let Ok(elements) = bytemuck::try_cast_slice_mut(out) {
        return code(elements);
    }
    let mut elements: Vec<T> = copied(out);
    code(&mut elements);
    out.copy_from_slice(bytemuck::cast_slice(&elements));
}

/// The elements of bytes that lie anywhere.
fn copied<T: Pod>(bytes: &[u8]) -> Vec<T> {
    let elements = bytes.chunks_exact(size_of::<T>());
    elements.map(bytemuck::pod_read_unaligned).collect()
}

/// Elements that are widened at a time.
const WIDE_BLOCK: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn folded<T: Pod>(op: ReduceOp, arithmetic: Arithmetic, sources: &[&[T]]) -> Vec<T> {
        let divisor = (op == ReduceOp::Mean).then_some(sources.len() as u32);
        let bytes: Vec<&[u8]> = sources.iter().map(|s| bytemuck::cast_slice(s)).collect();
        let mut out = vec![T::zeroed(); sources[0].len()];
        let out_bytes = bytemuck::cast_slice_mut(&mut out);
        fold(op, arithmetic, &bytes, divisor, out_bytes);
        out
    }

    #[test]
    fn each_operator_combines_all_sources() {
        let sources: [&[f32]; 3] = [&[1.0, -2.0], &[4.0, 0.5], &[4.0, 3.0]];
        let wanted = [
            (ReduceOp::Sum, [9.0, 1.5]),
            (ReduceOp::Mean, [3.0, 0.5]),
            (ReduceOp::Min, [1.0, -2.0]),
            (ReduceOp::Max, [4.0, 3.0]),
            (ReduceOp::Prod, [16.0, -3.0]),
        ];
        for (op, wanted) in wanted {
            assert_eq!(folded(op, Arithmetic::F32, &sources), wanted, "{op}");
        }
        let wrapped = folded(ReduceOp::Sum, Arithmetic::U8, &[&[250u8], &[10]]);
        assert_eq!(wrapped, [4]);
        let least = folded(ReduceOp::Min, Arithmetic::I64, &[&[i64::MIN], &[3]]);
        assert_eq!(least, [i64::MIN]);
    }

    #[test]
    fn a_nan_on_either_side_stays_one() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let out = folded(op, Arithmetic::F64, &[&[f64::NAN, 1.0], &[1.0, f64::NAN]]);
            assert!(out.iter().all(|value| value.is_nan()), "{op}");
        }
    }

    #[test]
    fn halves_are_rounded_once() {
        let one = vec![bf16::from_f32(1.0); 1300];
        // In steps, 256 + 1 is rounded back to 256 each time.
        let large = vec![bf16::from_f32(256.0); 1300];
        let sources: [&[bf16]; 3] = [&large, &one, &one];
        let out = folded(ReduceOp::Sum, Arithmetic::BF16, &sources);
        assert!(out.iter().all(|value| value.to_f32() == 258.0));
        let thirds: [&[f16]; 3] = [&[f16::from_f32(1.0)], &[f16::from_f32(2.0)], &[f16::ONE]];
        let mean = folded(ReduceOp::Mean, Arithmetic::F16, &thirds);
        assert_eq!(mean, [f16::from_f32(4.0 / 3.0)]);
    }

    #[test]
    fn elements_that_lie_askew_are_copied() {
        let mut bytes = [0u8; 9];
        bytes[1..].copy_from_slice(bytemuck::cast_slice(&[1.5f32, 2.5]));
        let mut out = [0u8; 9];
        let askew = &bytes[1..];
        fold(
            ReduceOp::Sum,
            Arithmetic::F32,
            &[askew, askew],
            None,
            &mut out[1..],
        );
        let values: Vec<f32> = copied(&out[1..]);
        assert_eq!(values, [3.0, 5.0]);
    }
}
