//! Functions of DynamoRIO that the bindings of `dynamorio-sys` leave out.

use core::ffi::{c_char, c_int, c_void};

use dynamorio_sys::{OPSZ_0, bool_, dr_mcontext_t, instr_t, opnd_size_t, reg_id_t};

/// The size that marks the operand of an address computation.
#[allow(non_upper_case_globals, reason = "DynamoRIO's name")]
pub(crate) const OPSZ_lea: u32 = OPSZ_0;

unsafe extern "C" {
    pub(crate) fn reg_is_gpr(reg: reg_id_t) -> bool_;
    pub(crate) fn reg_is_opmask(reg: reg_id_t) -> bool_;
    pub(crate) fn reg_is_strictly_xmm(reg: reg_id_t) -> bool_;
    pub(crate) fn reg_is_strictly_ymm(reg: reg_id_t) -> bool_;
    pub(crate) fn reg_is_strictly_zmm(reg: reg_id_t) -> bool_;
    pub(crate) fn reg_get_size(reg: reg_id_t) -> opnd_size_t;
    pub(crate) fn reg_to_pointer_sized(reg: reg_id_t) -> reg_id_t;
    pub(crate) fn reg_resize_to_opsz(reg: reg_id_t, size: opnd_size_t) -> reg_id_t;
    pub(crate) fn reg_get_value(reg: reg_id_t, context: *mut dr_mcontext_t) -> u64;
    pub(crate) fn reg_get_value_ex(reg: reg_id_t, context: *mut dr_mcontext_t, value: *mut u8) -> bool_;
    pub(crate) fn reg_set_value(reg: reg_id_t, context: *mut dr_mcontext_t, value: u64);
    pub(crate) fn decode_from_copy(dc: *mut c_void, copy: *mut u8, original: *mut u8, instr: *mut instr_t) -> *mut u8;
    pub(crate) fn decode_opcode_name(opcode: c_int) -> *const c_char;
}
