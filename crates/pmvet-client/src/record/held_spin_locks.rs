//! Held spin locks: detects when a thread has released a spin lock in volatile memory.
//!
//! A thread takes such a lock by a locked instruction, which is reported. It mostly releases it by a plain store, and
//! watching every store of the target would cost far too much. But which locks a thread holds matters only at its next
//! access to PM, flush or fence. So a thread remembers the words that it has changed in the way a lock is taken, and the
//! stubs compare their values with the remembered ones. A change is reported just ahead of the event at hand.

use std::sync::atomic::AtomicU64;

use pmvet_events::event::{AtomicKind, What};
use pmvet_events::ids::SiteId;

use super::lock_state::{HeldSpinLock, MAX_HELD_SPIN_LOCKS};
use super::thread::Thread;
use super::threads::threads;
use crate::dynamorio;

/// Where entries point whose memory was unmapped.
static GONE: AtomicU64 = AtomicU64::new(0);

impl HeldSpinLock {
    fn is_gone(&self) -> bool {
        self.word == &raw const GONE as u64
    }

    fn now(&self) -> Option<u64> {
        dynamorio::read_word(self.word).map(|word| word & self.mask)
    }

    /// Address, size, old value and new value of the lock.
    fn describe(&self, now: u64) -> (u64, usize, [u8; 8], [u8; 8]) {
        let shift = self.mask.trailing_zeros() % 64;
        let size = self.mask.count_ones() as usize / 8;
        (self.word + u64::from(shift / 8), size, (self.value >> shift).to_le_bytes(), (now >> shift).to_le_bytes())
    }
}

impl Thread {
    /// Reports locks that have changed since the thread took them. No stripe lock may be held.
    pub(crate) fn report_released_spin_locks(&mut self) {
        let mut at = self.spin_lock_count as usize;
        while at > 0 {
            at -= 1;
            let taken = self.spin_locks[at];
            if !taken.is_gone() && taken.now() == Some(taken.value) {
                continue;
            }
            self.spin_locks.copy_within(at + 1..self.spin_lock_count as usize, at);
            self.spin_lock_count -= 1;
            if taken.is_gone() {
                continue;
            }
            // Read again under the stripe lock of the word: a change by another thread has its number by then.
            self.lock_word(taken.word);
            if let Some(now) = taken.now() {
                let (addr, size, old, new) = taken.describe(now);
                let context = self.context(self.rsp);
                let what = What::Atomic { addr, old: &old[..size], new: &new[..size], how: AtomicKind::Found };
                self.emit_at(SiteId(self.site), context, what);
            }
            self.release_locks();
        }
    }
}

/// Memory is about to be unmapped: no thread may read locks there any more.
pub(crate) fn forget_range(start: u64, len: u64) {
    let end = start.saturating_add(len);
    for &thread in &threads().alive {
        let thread = thread as *mut Thread;
        // From the newest to the oldest: the thread may be moving entries the other way.
        for at in (0..MAX_HELD_SPIN_LOCKS).rev() {
            // SAFETY: threads in the list are alive; a word is written as a whole, and a thread that reads the old place
            // now does so before it is unmapped.
            unsafe {
                let word = &raw mut (*thread).spin_locks[at].word;
                if (start..end).contains(&word.read_volatile()) {
                    word.write_volatile(&raw const GONE as u64);
                }
            }
        }
    }
}
