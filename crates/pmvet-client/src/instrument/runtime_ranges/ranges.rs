//! The ranges that an instruction accesses, from the registers just before it.

use super::{RuntimeRanges, Shape};
use crate::dynamorio::bindings::*;

impl RuntimeRanges {
    /// The ranges that the instruction is about to access.
    pub(super) fn ranges(&self, registers: &dr_mcontext_t) -> Vec<(u64, u32)> {
        let registers = std::ptr::from_ref(registers).cast_mut();
        // SAFETY: `registers` is a full machine context; DynamoRIO only reads it here.
        unsafe {
            let at = opnd_compute_address(self.memory, registers) as u64;
            let value = |r: reg_id_t| reg_get_value(reg_to_pointer_sized(r), registers);
            match self.shape {
                Shape::Repeated { size, .. } => repeated_range(at, size, &*registers).into_iter().collect(),
                Shape::Masked { element } => {
                    let mask = (*registers).opmask[self.opmask.unwrap_or(0) as usize];
                    runs(at, element, self.size / element, |i| mask >> i & 1 != 0)
                }
                Shape::Compressed { element } => {
                    let lanes = self.size / element;
                    let mask = (*registers).opmask[self.opmask.unwrap_or(0) as usize];
                    let count = (mask & (u64::MAX >> (64 - lanes.min(64)))).count_ones();
                    vec![(at, count * element)]
                }
                Shape::VectorMasked { element, mask } => {
                    let mut bytes = [0u8; 64];
                    reg_get_value_ex(mask, registers, bytes.as_mut_ptr());
                    let top = |i: u32| bytes[((i + 1) * element - 1) as usize & 63] & 0x80 != 0;
                    runs(at, element, self.size.min(64) / element, top)
                }
                Shape::Indexed { element, wide, lanes, mask } => {
                    let mut index = [0u8; 64];
                    reg_get_value_ex(opnd_get_index(self.memory), registers, index.as_mut_ptr());
                    let mut signs = [0u8; 64];
                    if let Some(mask) = mask {
                        reg_get_value_ex(mask, registers, signs.as_mut_ptr());
                    }
                    let active = |lane: u32| match (self.opmask, mask) {
                        (Some(k), _) => (*registers).opmask[k as usize] >> lane & 1 != 0,
                        (None, Some(_)) => signs[((lane + 1) * element - 1) as usize & 63] & 0x80 != 0,
                        (None, None) => true,
                    };
                    let base = opnd_get_base(self.memory);
                    let base = if base == DR_REG_NULL as reg_id_t { 0 } else { value(base) };
                    let address = |lane: u32| {
                        let at = lane as usize * if wide { 8 } else { 4 };
                        let word = u64::from_le_bytes(index[at.min(56)..at.min(56) + 8].try_into().unwrap_or_default());
                        let number = match (wide, at > 56) {
                            (true, _) => word as i64,
                            (false, false) => i64::from(word as i32),
                            (false, true) => i64::from((word >> 32) as i32),
                        };
                        let scaled = number.wrapping_mul(opnd_get_scale(self.memory).into());
                        base.wrapping_add_signed(scaled.wrapping_add(opnd_get_disp(self.memory).into()))
                    };
                    (0..lanes).filter(|&i| active(i)).map(|i| (address(i), element)).collect()
                }
                Shape::BitString { size, number } => {
                    let bits = i64::from(size) * 8;
                    let number = match opnd_size_in_bytes(reg_get_size(number)) {
                        2 => i64::from(value(number) as i16),
                        4 => i64::from(value(number) as i32),
                        _ => value(number) as i64,
                    };
                    vec![(at.wrapping_add_signed(number.div_euclid(bits) * i64::from(size)), size)]
                }
                Shape::Direct { to } => vec![(value(to), 64)],
                Shape::Opaque { .. } => vec![(at, self.size.max(1))],
            }
        }
    }
}

/// Neighbouring active elements, as ranges.
fn runs(at: u64, element: u32, lanes: u32, active: impl Fn(u32) -> bool) -> Vec<(u64, u32)> {
    let mut ranges: Vec<(u64, u32)> = Vec::new();
    for lane in (0..lanes).filter(|&i| active(i)) {
        let start = at + u64::from(lane * element);
        match ranges.last_mut() {
            Some((from, len)) if *from + u64::from(*len) == start => *len += element,
            _ => ranges.push((start, element)),
        }
    }
    ranges
}

/// The range of a repeated string instruction, from `at` in the direction that the flags say.
pub(super) fn repeated_range(at: u64, size: u32, registers: &dr_mcontext_t) -> Option<(u64, u32)> {
    const DIRECTION: u64 = 1 << 10;
    // SAFETY: reads plain integers out of unions of integers.
    let (count, flags) = unsafe { (registers.__bindgen_anon_7.rcx, registers.__bindgen_anon_9.rflags) };
    let len = u32::try_from(count.checked_mul(size.into())?).ok()?;
    let start = if flags & DIRECTION != 0 { at.wrapping_add(size.into()).wrapping_sub(len.into()) } else { at };
    (len != 0).then_some((start, len))
}
