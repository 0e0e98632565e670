//! Stripe locks: a store to PM and its number are taken under the lock of the line, so that numbers follow memory order.
//!
//! The locks are in shared memory and are chosen by a line's position in its file, so that processes which map the same file
//! use the same lock.

use std::sync::atomic::{AtomicU32, Ordering};

use pmvet_events::event::LINE;
use pmvet_events::ids::FileId;
use pmvet_events::shm::STRIPES;

use super::mapping::Mapping;
use super::pm::PM;
use super::ring_claim::wait_a_little;
use super::thread::{Thread, mode};
use crate::dynamorio;
use crate::run::run;

impl Thread {
    /// Takes the stripe locks of all lines in `ranges`, in the order that all threads use.
    pub(crate) fn lock_ranges(&mut self, ranges: &[(u64, u32)]) {
        let lines = |&(addr, len): &(u64, u32)| {
            let lines = addr / LINE..=(addr + u64::from(len).max(1) - 1) / LINE;
            lines.take(STRIPES).filter_map(|line| PM.stripe(line * LINE))
        };
        self.lock_stripes(ranges.iter().flat_map(lines).collect());
    }

    fn lock_stripes(&mut self, mut stripes: Vec<usize>) {
        if !run().many_threads() {
            return;
        }
        stripes.sort_unstable();
        stripes.dedup();
        for &stripe in &stripes {
            acquire(stripe, self.os_thread);
        }
        self.held_stripes = stripes;
    }

    /// Takes the stripe locks of a range of a file, whether it is mapped or not.
    pub(crate) fn lock_file_range(&mut self, inode: u64, offset: u64, len: u64) {
        let whole = Mapping { start: 0, end: u64::MAX, file: FileId(0), inode, offset: 0 };
        let lines = (offset / LINE..=(offset + len.max(1) - 1) / LINE).take(STRIPES);
        self.lock_stripes(lines.map(|line| whole.stripe(line * LINE)).collect());
    }

    /// Takes the stripe lock of a word of volatile memory, as the stub does.
    pub(crate) fn lock_word(&mut self, addr: u64) {
        self.lock_stripe((addr / 8) as usize % STRIPES);
    }

    /// Takes one stripe lock, as the stub does.
    pub(super) fn lock_stripe(&mut self, stripe: usize) {
        acquire(stripe, self.os_thread);
        self.stripe_lock = run().shared.stripe(stripe) as *const AtomicU32 as u64;
    }

    pub(crate) fn note_in_flight(&self, addr: u64, len: u64) {
        let control = run().shared.control(self.ring);
        control.in_flight_size.store(len, Ordering::Relaxed);
        control.in_flight.store(addr, Ordering::Release);
    }

    pub(crate) fn release_locks(&mut self) {
        for stripe in std::mem::take(&mut self.held_stripes) {
            run().shared.stripe(stripe).store(0, Ordering::Release);
        }
        if self.stripe_lock != 0 {
            // SAFETY: set by us or a stub to the address of a stripe.
            unsafe { (*(self.stripe_lock as *const AtomicU32)).store(0, Ordering::Release) };
            self.stripe_lock = 0;
        }
    }

    /// Releases every stripe lock and forgets the access under way, which is done or has faulted.
    pub(crate) fn finish_access(&mut self) {
        self.release_locks();
        self.ranges.clear();
        self.mode = mode::NOTHING;
        let control = run().shared.control(self.ring);
        control.in_flight.store(0, Ordering::Release);
        control.in_flight_size.store(LINE, Ordering::Relaxed);
    }
}

/// Takes a stripe lock. Takes it over if its holder was killed.
fn acquire(stripe: usize, os_thread: u32) {
    let lock = run().shared.stripe(stripe);
    let mut waits = 0;
    let mut expected = 0;
    while let Err(holder) = lock.compare_exchange(expected, os_thread, Ordering::AcqRel, Ordering::Relaxed) {
        wait_a_little(&mut waits);
        expected = if holder != 0 && waits > 1000 && !dynamorio::thread_lives(holder) { holder } else { 0 };
    }
}
