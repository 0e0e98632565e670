//! Memory for the client, from DynamoRIO.
//!
//! The C library's own allocator must not be used: this copy of the library never created a thread, so it assumes a
//! single-threaded process and takes no locks.

use std::alloc::{GlobalAlloc, Layout};

use super::bindings::{dr_global_alloc, dr_global_free};

struct Heap;

#[global_allocator]
static HEAP: Heap = Heap;

/// DynamoRIO aligns to words. The word before a block says where the memory that holds it starts.
const WORD: usize = 8;

/// Extra bytes to align a block, and for that word.
fn extra(layout: Layout) -> usize {
    layout.align().max(2 * WORD)
}

// SAFETY: blocks are as large and aligned as asked for, disjoint, and live until they are given back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let extra = extra(layout);
        // SAFETY: the block starts at least a word behind `start` and ends at most `extra` bytes later than it would there.
        unsafe {
            let start = dr_global_alloc(layout.size() + extra).cast::<u8>();
            if start.is_null() {
                return start;
            }
            let block = start.map_addr(|a| (a + extra) & !(layout.align().max(WORD) - 1));
            block.cast::<*mut u8>().sub(1).write(start);
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `alloc` left the start before the block, and the same layout gives the same size.
        unsafe {
            let start = block.cast::<*mut u8>().sub(1).read();
            dr_global_free(start.cast(), layout.size() + extra(layout));
        }
    }
}
