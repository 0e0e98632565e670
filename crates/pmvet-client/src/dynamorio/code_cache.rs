//! DynamoRIO's cache of translated code.

use core::ffi::c_void;

use super::bindings::*;
use super::{fail, read_memory, regions};

/// Drops all translated code. Other threads leave theirs at the end of the block they are in.
pub(crate) fn flush_code() {
    // SAFETY: from an event in which this thread is outside the code cache and holds no lock.
    if unsafe { dr_unlink_flush_region(std::ptr::null_mut(), usize::MAX) } == 0 {
        fail("DynamoRIO cannot drop its code at this point");
    }
}

/// Keeps the addresses that hold code. Asking DynamoRIO would read the whole memory map once for each address.
pub(crate) fn retain_code(tags: &mut Vec<u64>) {
    let mut code = regions();
    code.retain(|region| region.allows(libc::PROT_EXEC));
    tags.retain(|&tag| {
        let next = code.partition_point(|region| region.start <= tag);
        next > 0 && tag < code[next - 1].end
    });
}

/// Fills the code cache with the blocks at these addresses, and also the tables by which returns and indirect jumps find
/// them: a child would otherwise ask DynamoRIO once for each target.
pub(crate) fn translate(dc: *mut c_void, tags: &[u64]) {
    use dr_indirect_branch_type_t_DR_INDIRECT_CALL as CALL;
    use dr_indirect_branch_type_t_DR_INDIRECT_JUMP as JUMP;
    use dr_indirect_branch_type_t_DR_INDIRECT_RETURN as RETURN;
    let mut tags: Vec<app_pc> = tags.iter().map(|&tag| tag as app_pc).collect();
    let (mut returns, mut others): (Vec<app_pc>, Vec<app_pc>) = tags.iter().partition(|&&tag| follows_call(tag as u64));
    // DynamoRIO expects to be called from the target's state and leaves in it.
    let fill = |how: &dyn Fn()| {
        // SAFETY: a change to the other state and back.
        unsafe {
            dr_switch_to_app_state(dc);
            how();
            dr_switch_to_dr_state_ex(dc, dr_state_flags_t_DR_STATE_GO_NATIVE);
        }
    };
    let count = tags.len();
    let tags = tags.as_mut_ptr();
    // SAFETY: the addresses hold code.
    fill(&|| unsafe { _ = dr_prepopulate_cache(tags, count) });
    for (kind, targets) in [(RETURN, &mut returns), (CALL, &mut others.clone()), (JUMP, &mut others)] {
        let (targets, count) = (targets.as_mut_ptr(), targets.len());
        // SAFETY: as above.
        fill(&|| unsafe { _ = dr_prepopulate_indirect_targets(kind, targets, count) });
    }
}

/// Whether the bytes before an address look like a call. A wrong guess does no harm.
fn follows_call(at: u64) -> bool {
    let mut before = [0; 7];
    if read_memory(at.wrapping_sub(7), &mut before) != 7 {
        return false;
    }
    // With a distance, or through a register or memory: 2, 3, 4, 6 or 7 bytes.
    before[2] == 0xe8 || [5, 4, 3, 1, 0].iter().any(|&i| before[i] == 0xff && before[i + 1] & 0x38 == 0x10)
}
