//! Memory: that of the target, read and written safely, and that of the client.

use core::ffi::c_void;

use pmvet_events::stage::Stage;

use super::bindings::*;
use super::{Region, fail, regions};

/// Reads the target's memory, as far as it is mapped.
pub(crate) fn read_memory(addr: u64, into: &mut [u8]) -> usize {
    let mut read = 0;
    // SAFETY: `dr_safe_read` survives bad addresses; the destination is valid.
    unsafe { dr_safe_read(addr as *const c_void, into.len(), into.as_mut_ptr().cast(), &raw mut read) };
    read
}

pub(crate) fn read_word(addr: u64) -> Option<u64> {
    let mut word = [0; 8];
    (read_memory(addr, &mut word) == 8).then(|| u64::from_le_bytes(word))
}

/// The longest string that is read from the target: the longest path that Linux allows.
const MAX_STRING_BYTES: usize = 4096;

/// A C string of the target, cut at [`MAX_STRING_BYTES`].
pub(crate) fn read_c_string(addr: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = addr;
    while text.len() < MAX_STRING_BYTES {
        let mut chunk = [0; 64];
        let room = (64 - at % 64) as usize;
        let got = read_memory(at, &mut chunk[..room]);
        if got == 0 {
            return None;
        }
        if let Some(end) = chunk[..got].iter().position(|&b| b == 0) {
            text.extend_from_slice(&chunk[..end]);
            return Some(text);
        }
        text.extend_from_slice(&chunk[..got]);
        at += got as u64;
    }
    Some(text)
}

/// Writes the target's memory, where that is possible.
pub(crate) fn write_memory(addr: u64, bytes: &[u8]) {
    // SAFETY: `dr_safe_write` survives bad addresses.
    unsafe { dr_safe_write(addr as *mut c_void, bytes.len(), bytes.as_ptr().cast(), std::ptr::null_mut()) };
}

pub(crate) fn alloc_pages(bytes: usize) -> *mut u8 {
    // SAFETY: fresh memory.
    let memory = unsafe { dr_raw_mem_alloc(bytes, DR_MEMPROT_READ | DR_MEMPROT_WRITE, std::ptr::null_mut()) };
    if memory.is_null() {
        fail("out of memory");
    }
    memory.cast()
}

/// Memory whose address fits a 32-bit displacement.
pub(crate) fn alloc_low(bytes: usize) -> *mut u8 {
    let protection = DR_MEMPROT_READ | DR_MEMPROT_WRITE;
    let flags = dr_alloc_flags_t_DR_ALLOC_NON_HEAP | dr_alloc_flags_t_DR_ALLOC_LOW_2GB;
    // SAFETY: fresh memory.
    let memory = unsafe { dr_custom_alloc(std::ptr::null_mut(), flags, bytes, protection, std::ptr::null_mut()) };
    let memory = if memory.is_null() { map_low(bytes) } else { memory };
    if memory.is_null() || memory as usize + bytes > i32::MAX as usize {
        fail("no memory below 2 GiB is free in the target");
    }
    memory.cast()
}

/// Whether anything is mapped in an address range.
pub(crate) fn is_mapped(addr: u64, len: u64) -> bool {
    regions().iter().any(|region| region.start < addr.saturating_add(len) && region.end > addr)
}

/// Joins the target's memory into large pages where possible: a fork copies one entry for each page.
pub(crate) fn join_pages() {
    const LARGE_PAGE_BYTES: u64 = 1 << 21;
    const MADV_COLLAPSE: i32 = 25;
    let data = |region: &Region| {
        region.inode == (0, 0) && region.protection == libc::PROT_READ | libc::PROT_WRITE && !region.shared
    };
    for region in regions().into_iter().filter(data) {
        let (first, last) = (region.start.next_multiple_of(LARGE_PAGE_BYTES), region.end & !(LARGE_PAGE_BYTES - 1));
        if first < last {
            // SAFETY: changes nothing but the size of pages; an older kernel refuses.
            unsafe { libc::madvise(first as *mut c_void, (last - first) as usize, MADV_COLLAPSE) };
        }
    }
}

/// DynamoRIO and the kernel only search between 1 and 2 GiB. A large program may have room elsewhere.
fn map_low(bytes: usize) -> *mut c_void {
    map_file_low(bytes, -1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
}

/// Maps the stage where a 32-bit displacement reaches it, without keeping its file open.
pub(crate) fn map_stage(path: &str) -> &'static Stage {
    use std::os::fd::AsRawFd;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap_or_else(|e| fail(&format!("cannot reach pmvet's stage: {e}")));
    let at = map_file_low(Stage::BYTES, file.as_raw_fd(), libc::MAP_SHARED);
    if at.is_null() {
        fail("no memory below 2 GiB is free in the target");
    }
    // SAFETY: a mapping of this size that stays; all accesses are atomic.
    unsafe { &*at.cast::<Stage>() }
}

fn map_file_low(bytes: usize, fd: i32, how: i32) -> *mut c_void {
    let mut free_from: usize = 1 << 20;
    for region in regions() {
        // From the top of the gap: a heap may grow from its bottom.
        let top = (region.start as usize).min(i32::MAX as usize) & !0xfff;
        if top >= free_from + 2 * bytes {
            let hint = (top - bytes) as *mut c_void;
            let flags = how | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: replaces nothing.
            let at = unsafe { libc::mmap(hint, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
            if at != libc::MAP_FAILED {
                return at;
            }
        }
        free_from = region.end as usize;
        if free_from >= i32::MAX as usize {
            break;
        }
    }
    std::ptr::null_mut()
}

pub(crate) fn free_pages(memory: *mut u8, bytes: usize) {
    // SAFETY: from `alloc_pages` with the same size.
    unsafe { dr_raw_mem_free(memory.cast(), bytes) };
}
