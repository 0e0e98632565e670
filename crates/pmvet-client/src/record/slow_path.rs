//! The slow path: what the stubs leave to Rust.
//!
//! These are first hits of a mapping, stores across lines, read-modify-writes of unusual size, full rings and new call paths.

use std::sync::atomic::Ordering;

use pmvet_events::event::{FenceKind, LINE, StoreKind, What};
use pmvet_events::ids::SiteId;
use pmvet_events::wire;

use super::pm::PM;
use super::ring::STUB_RECORD_BYTES;
use super::thread::{Thread, mode, slot};
use crate::run::run;

/// The slow half of [`crate::instrument::stubs::before_store`].
pub(crate) unsafe extern "C" fn before_store(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let addr = thread.slot(slot::ADDR);
    let len = u64::from(thread.size);
    // The stub may have taken the lock already.
    thread.release_locks();
    thread.mode = mode::NOTHING;
    thread.report_released_spin_locks();
    if !thread.hits_pm(addr, len) {
        return;
    }
    let one_line = addr % LINE + len <= LINE;
    let many_threads = run().many_threads();
    if many_threads {
        if one_line {
            thread.lock_stripe(PM.stripe(addr).unwrap_or(0));
        } else {
            thread.lock_ranges(&[(addr, len as u32)]);
        }
    }
    if thread.next_mode == mode::RMW {
        let size = usize::from(thread.size).min(16);
        read_target_bytes(addr, &mut thread.old_value[..size]);
        thread.mode = mode::RARE_RMW;
    } else if one_line || !many_threads {
        thread.prepare_record(addr);
        thread.mode = thread.next_mode;
    } else {
        thread.mode = mode::SLOW;
    }
    thread.note_in_flight(addr, len);
}

/// The slow half of [`crate::instrument::stubs::after_store`].
pub(crate) unsafe extern "C" fn after_store(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let addr = thread.slot(slot::ADDR);
    let size = usize::from(thread.size);
    let context = thread.context(thread.rsp);
    let site = SiteId(thread.site);
    let mut value = [0; 64];
    if thread.mode == mode::RARE_RMW {
        let size = size.min(16);
        read_target_bytes(addr, &mut value[..size]);
        let old = thread.old_value;
        // The zero flag, where `lahf` put it. Only a compare-and-exchange can fail.
        let stored = thread.kind != wire::RMW_FAILED || thread.flags & (1 << 14) != 0;
        let discards = thread.kind == wire::RMW_DISCARDING;
        thread.emit_at(site, context, What::Rmw { addr, old: &old[..size], new: &value[..size], stored, discards });
    } else {
        read_target_bytes(addr, &mut value[..size]);
        let how = if thread.kind == wire::STORE_NT { StoreKind::NonTemporal } else { StoreKind::Regular };
        thread.emit_at(site, context, What::Store { addr, value: &value[..size], how });
    }
    thread.finish_access();
}

/// The slow form of [`crate::instrument::stubs::load`].
pub(crate) unsafe extern "C" fn load(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let (addr, size) = (thread.slot(slot::ADDR), u32::from(thread.size));
    thread.report_released_spin_locks();
    if thread.hits_pm(addr, size.into()) {
        let context = thread.context(thread.rsp);
        thread.emit_at(SiteId(thread.site), context, What::Load { addr, size });
    }
}

/// The slow form of [`crate::instrument::stubs::flush`].
pub(crate) unsafe extern "C" fn flush(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let addr = thread.slot(slot::ADDR);
    thread.report_released_spin_locks();
    // A flush of volatile memory is worth reporting too.
    thread.size = thread.hits_pm(addr, 1).into();
    thread.prepare_record(addr);
    thread.publish_prepared();
}

/// The slow form of [`crate::instrument::stubs::fence`].
pub(crate) unsafe extern "C" fn fence(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    thread.report_released_spin_locks();
    thread.prepare_record(0);
    thread.publish_prepared();
}

/// The slow form of [`crate::instrument::stubs::before_atomic`].
pub(crate) unsafe extern "C" fn before_atomic(thread: *mut Thread) {
    // SAFETY: the stub passes the thread it runs on.
    let thread = unsafe { &mut *thread };
    let (addr, size) = (thread.slot(slot::ADDR), usize::from(thread.size));
    thread.release_locks();
    thread.mode = mode::NOTHING;
    if thread.slot(slot::FENCE_PENDING) != 0 {
        thread.set_slot(slot::FENCE_PENDING, 0);
        let context = thread.context(thread.rsp);
        thread.emit_at(SiteId(thread.site), context, What::Fence { how: FenceKind::Locked });
    }
    if !run().many_threads() || addr as usize % 8 + size > 8 {
        return;
    }
    thread.report_released_spin_locks();
    thread.prepare_record(addr);
    thread.lock_word(addr);
    let mut old = [0; 8];
    read_target_bytes(addr, &mut old[..size]);
    // SAFETY: as in `prepare_record`, which left room for the values too.
    unsafe { thread.cursor.cast::<u64>().add(3).write(u64::from_le_bytes(old)) };
    thread.mode = thread.next_mode;
}

impl Thread {
    /// Whether any of the `len` bytes at `addr` is PM. The stubs check the same mapping first next time.
    pub(crate) fn hits_pm(&mut self, addr: u64, len: u64) -> bool {
        let Some(mapping) = PM.find(addr, len) else { return false };
        self.pm_start = mapping.start;
        self.pm_key = mapping.key();
        self.pm_span = mapping.end - mapping.start;
        true
    }

    /// Writes place and address of the next record, as the stubs do.
    fn prepare_record(&mut self, addr: u64) {
        let context = self.context(self.rsp);
        self.make_room(STUB_RECORD_BYTES);
        let record = self.cursor.cast::<u64>();
        // SAFETY: `make_room` left a stub's record of room at the cursor, which is aligned to words.
        unsafe {
            record.add(1).write(u64::from(self.site) | u64::from(context.0) << 32);
            record.add(2).write(addr);
        }
    }

    /// Numbers and publishes a prepared record without data.
    fn publish_prepared(&mut self) {
        let seq = run().shared.header().next_seq.0.fetch_add(1, Ordering::AcqRel);
        // SAFETY: as in `prepare_record`.
        unsafe { self.cursor.cast::<u64>().write(wire::word0(seq, self.kind, self.size)) };
        self.advance(wire::HEADER);
        self.seq_after = seq + 1;
    }
}

/// Reads memory that the target's instruction is about to access or has just accessed.
fn read_target_bytes(addr: u64, into: &mut [u8]) {
    for (i, byte) in into.iter_mut().enumerate() {
        // SAFETY: the instruction under way accesses the same bytes, and has been seen not to fault if they are not PM.
        *byte = unsafe { ((addr + i as u64) as *const u8).read_volatile() };
    }
}
