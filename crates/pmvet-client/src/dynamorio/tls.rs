//! Thread-local slots that instrumented code reaches through a segment register.
//!
//! Rust's `thread_local!` does not work under DynamoRIO's loader.

use core::ffi::c_void;

use super::bindings::*;
use super::{Global, fail};

/// The slots of the client, which every thread has.
pub(crate) static TLS: Global<Tls> = Global::new();

/// Where the slots are, relative to a segment register.
#[derive(Debug)]
pub(crate) struct Tls {
    segment: reg_id_t,
    offset: u32,
}

impl Tls {
    /// Reserves `count` slots of 8 bytes in every thread.
    pub(crate) fn reserve(count: usize) -> Self {
        let (mut segment, mut offset) = (0, 0);
        // SAFETY: both out-pointers are valid.
        if unsafe { dr_raw_tls_calloc(&raw mut segment, &raw mut offset, count as u32, 0) } == 0 {
            fail("DynamoRIO has no thread-local slots left");
        }
        Self { segment, offset }
    }

    /// The slots of the calling thread.
    pub(crate) fn slots(&self) -> *mut u64 {
        // SAFETY: returns the segment base of the calling thread.
        unsafe { dr_get_dr_segment_base(self.segment).cast::<u8>().add(self.offset as usize).cast() }
    }

    /// A slot as the operand of an instruction.
    pub(crate) fn operand(&self, dc: *mut c_void, index: usize) -> opnd_t {
        // SAFETY: builds a plain value.
        unsafe { dr_raw_tls_opnd(dc, self.segment, self.offset + index as u32 * 8) }
    }
}

/// What the client keeps in DynamoRIO's own field of a thread.
///
/// # Safety
///
/// `dc` is the context of a thread that exists.
pub(crate) unsafe fn thread_field(dc: *mut c_void) -> *mut c_void {
    // SAFETY: the caller vouches for the context.
    unsafe { dr_get_tls_field(dc) }
}

/// Sets that field.
///
/// # Safety
///
/// As in [`thread_field`].
pub(crate) unsafe fn set_thread_field(dc: *mut c_void, value: *mut c_void) {
    // SAFETY: the caller vouches for the context.
    unsafe { dr_set_tls_field(dc, value) };
}
