//! Loads and stores of whole ranges of memory: by instructions that have several, and by the kernel.

use pmvet_events::event::{LINE, StoreKind, What};
use pmvet_events::ids::{ContextId, SiteId};
use pmvet_events::wire::MAX_DATA;

use super::thread::Thread;
use crate::dynamorio;

impl Thread {
    /// Reports the stores to `ranges`, with the values that are there now, and ends the access.
    pub(crate) fn report_ranges(&mut self, how: StoreKind, locked: bool) {
        let context = self.context(self.rsp);
        let site = SiteId(self.site);
        for (addr, len) in std::mem::take(&mut self.ranges) {
            if locked {
                let size = (len as usize).min(16);
                let (old, mut new) = (self.old_value, [0; 16]);
                dynamorio::read_memory(addr, &mut new[..size]);
                self.emit_at(
                    site,
                    context,
                    What::Rmw { addr, old: &old[..size], new: &new[..size], stored: true, discards: false },
                );
            } else {
                self.report_memory(site, context, addr, len.into(), how);
            }
        }
        self.finish_access();
    }

    /// Reports what `len` bytes at `addr` hold now as stored there.
    pub(crate) fn report_memory(&mut self, site: SiteId, context: ContextId, addr: u64, len: u64, how: StoreKind) {
        let mut value = [0; MAX_DATA];
        let mut done = 0;
        while done < len {
            // Chunks end at multiples of the chunk size, so that a line is never split.
            let at = addr + done;
            let room = MAX_DATA as u64 - at % MAX_DATA as u64;
            let chunk = (len - done).min(room) as usize;
            let read = dynamorio::read_memory(at, &mut value[..chunk]);
            if read == 0 {
                return;
            }
            self.emit_at(site, context, What::Store { addr: at, value: &value[..read], how });
            done += read as u64;
        }
    }

    /// Reports loads of `len` bytes at `addr`, line by line: a record has a byte for the size.
    pub(crate) fn report_loads(&mut self, site: SiteId, context: ContextId, addr: u64, len: u64) {
        let (mut at, end) = (addr, addr + len);
        while at < end {
            let next = end.min((at | (LINE - 1)) + 1);
            self.emit_at(site, context, What::Load { addr: at, size: (next - at) as u32 });
            at = next;
        }
    }

    /// The target's instruction faulted half-way: a repeated string instruction that got as far as `rdi`.
    pub(crate) fn report_partial(&mut self, rdi: u64) {
        for (start, len) in &mut self.ranges {
            *len = rdi.clamp(*start, *start + u64::from(*len)).wrapping_sub(*start) as u32;
        }
        self.ranges.retain(|r| r.1 != 0);
        if !self.ranges.is_empty() {
            self.report_ranges(StoreKind::Regular, false);
        }
    }
}
