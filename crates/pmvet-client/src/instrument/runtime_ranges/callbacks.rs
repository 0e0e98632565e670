//! Before and after an instruction whose ranges are known only at run time.

use core::ffi::c_void;

use pmvet_events::event::{StoreKind, What};
use pmvet_events::ids::SiteId;

use super::ranges::repeated_range;
use super::{RuntimeRanges, Shape};
use crate::dynamorio;
use crate::dynamorio::bindings::*;
use crate::dynamorio::emitter::{Emitter, immediate};
use crate::record::pm::PM;
use crate::record::thread::{Thread, mode, slot};

impl RuntimeRanges {
    /// Inserts the call before the instruction.
    pub(crate) fn call_before(&'static self, e: &Emitter) {
        self.call(e, before);
    }

    /// Inserts the call after it.
    pub(crate) fn call_after(&'static self, e: &Emitter) {
        if self.store {
            self.call(e, after);
        }
    }

    fn call(&'static self, e: &Emitter, callback: unsafe extern "C" fn(*const Self)) {
        let argument = immediate(std::ptr::from_ref(self) as i64, OPSZ_8);
        // SAFETY: the callback takes one pointer.
        unsafe { e.clean_call(callback as *mut c_void, argument) };
    }
}

unsafe extern "C" fn before(plan: *const RuntimeRanges) {
    if PM.is_empty() {
        return;
    }
    // SAFETY: `call` passes a plan that lives forever.
    let plan = unsafe { &*plan };
    let registers = dynamorio::registers();
    let thread = Thread::current();
    // SAFETY: reads a plain integer out of a union of integers.
    let sp = unsafe { registers.__bindgen_anon_4.rsp };
    thread.rsp = sp;
    let pm_parts = |ranges: Vec<(u64, u32)>| -> Vec<(u64, u32)> {
        let parts = ranges.into_iter().flat_map(|(at, len)| {
            let mut parts = PM.overlaps(at, len.into());
            parts.reverse();
            parts.into_iter().map(|m| (m.start, (m.end - m.start) as u32))
        });
        parts.collect()
    };
    if plan.load {
        let from = match plan.shape {
            Shape::Repeated { size, store: true, .. } => {
                // SAFETY: as above.
                let rsi = unsafe { registers.__bindgen_anon_2.rsi };
                repeated_range(rsi, size, &registers).into_iter().collect()
            }
            Shape::Direct { .. } => {
                let registers = std::ptr::from_ref(&*registers).cast_mut();
                // SAFETY: a full machine context, which is only read.
                let at = |from| unsafe { opnd_compute_address(from, registers) } as u64;
                plan.source.map(|from| (at(from), 64)).into_iter().collect()
            }
            Shape::Repeated { size, store: false } => {
                // SAFETY: as above.
                let (rsi, rdi) = unsafe { (registers.__bindgen_anon_2.rsi, registers.__bindgen_anon_1.rdi) };
                let starts = [rsi, rdi].into_iter().zip(plan.reads);
                let starts = starts.filter(|&(_, reads)| reads).map(|(at, _)| at);
                starts.filter_map(|at| repeated_range(at, size, &registers)).collect()
            }
            _ => plan.ranges(&registers),
        };
        let context = thread.context(sp);
        for (addr, size) in pm_parts(from) {
            thread.report_loads(SiteId(plan.site), context, addr, u64::from(size));
        }
    }
    if !plan.store {
        return;
    }
    let ranges = pm_parts(plan.ranges(&registers));
    if ranges.is_empty() {
        return;
    }
    if let Shape::Opaque { why } = plan.shape {
        let context = thread.context(sp);
        for (addr, size) in ranges {
            thread.emit_at(SiteId(plan.site), context, What::Unsupported { addr, size, why });
        }
        return;
    }
    thread.lock_ranges(&ranges);
    let (first, len) = ranges[0];
    thread.note_in_flight(first, len.into());
    if plan.locked {
        dynamorio::read_memory(first, &mut thread.old_value[..(len as usize).min(16)]);
    }
    thread.ranges = ranges;
    thread.site = plan.site;
    thread.mode = mode::SLOW;
}

unsafe extern "C" fn after(plan: *const RuntimeRanges) {
    let thread = Thread::current();
    if thread.ranges.is_empty() {
        return;
    }
    // SAFETY: as in `before`.
    let plan = unsafe { &*plan };
    let streaming = matches!(plan.shape, Shape::Direct { .. } | Shape::VectorMasked { element: 1, .. });
    thread.report_ranges(if streaming { StoreKind::NonTemporal } else { StoreKind::Regular }, plan.locked);
    if streaming {
        thread.set_slot(slot::FENCE_PENDING, 1);
    }
}
