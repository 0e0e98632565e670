//! What the client uses of DynamoRIO, as its headers declare it. Made by `scripts/bindings.sh`; changes belong there.

#![allow(
    dead_code,
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    reason = "made by a program, with the names that DynamoRIO has"
)]

pub const DR_MEMPROT_READ: u32 = 1;
pub const DR_MEMPROT_WRITE: u32 = 2;
pub const DR_FILE_READ: u32 = 1;
pub type ushort = ::core::ffi::c_ushort;
pub type uint = ::core::ffi::c_uint;
pub type bool_ = ::core::ffi::c_char;
pub type byte = ::core::ffi::c_uchar;
pub type app_pc = *mut byte;
pub type int64 = ::core::ffi::c_long;
pub type uint64 = ::core::ffi::c_ulong;
pub type reg_t = uint64;
pub type ptr_int_t = int64;
pub type file_t = ::core::ffi::c_int;
unsafe extern "C" {
    pub static mut our_stderr: file_t;
}
pub type client_id_t = uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct opnd_t {
    pub black_box_uint: uint,
    pub black_box_uint64: uint64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of opnd_t"][::core::mem::size_of::<opnd_t>() - 16usize];
    ["Alignment of opnd_t"][::core::mem::align_of::<opnd_t>() - 8usize];
    ["Offset of field: opnd_t::black_box_uint"][::core::mem::offset_of!(opnd_t, black_box_uint) - 0usize];
    ["Offset of field: opnd_t::black_box_uint64"][::core::mem::offset_of!(opnd_t, black_box_uint64) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct instr_t {
    pub black_box_uint: [uint; 28usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of instr_t"][::core::mem::size_of::<instr_t>() - 112usize];
    ["Alignment of instr_t"][::core::mem::align_of::<instr_t>() - 4usize];
    ["Offset of field: instr_t::black_box_uint"][::core::mem::offset_of!(instr_t, black_box_uint) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_zmm_t {
    pub u64_: [uint64; 8usize],
    pub u32_: [uint; 16usize],
    pub u8_: [byte; 64usize],
    pub reg: [reg_t; 8usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_zmm_t"][::core::mem::size_of::<_dr_zmm_t>() - 64usize];
    ["Alignment of _dr_zmm_t"][::core::mem::align_of::<_dr_zmm_t>() - 8usize];
    ["Offset of field: _dr_zmm_t::u64_"][::core::mem::offset_of!(_dr_zmm_t, u64_) - 0usize];
    ["Offset of field: _dr_zmm_t::u32_"][::core::mem::offset_of!(_dr_zmm_t, u32_) - 0usize];
    ["Offset of field: _dr_zmm_t::u8_"][::core::mem::offset_of!(_dr_zmm_t, u8_) - 0usize];
    ["Offset of field: _dr_zmm_t::reg"][::core::mem::offset_of!(_dr_zmm_t, reg) - 0usize];
};
pub type dr_zmm_t = _dr_zmm_t;
pub type dr_opmask_t = uint64;
impl dr_mcontext_flags_t {
    pub const DR_MC_INTEGER: dr_mcontext_flags_t = dr_mcontext_flags_t(1);
}
impl dr_mcontext_flags_t {
    pub const DR_MC_CONTROL: dr_mcontext_flags_t = dr_mcontext_flags_t(2);
}
impl dr_mcontext_flags_t {
    pub const DR_MC_MULTIMEDIA: dr_mcontext_flags_t = dr_mcontext_flags_t(4);
}
impl dr_mcontext_flags_t {
    pub const DR_MC_ALL: dr_mcontext_flags_t = dr_mcontext_flags_t(7);
}
impl ::core::ops::BitOr<dr_mcontext_flags_t> for dr_mcontext_flags_t {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        dr_mcontext_flags_t(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for dr_mcontext_flags_t {
    #[inline]
    fn bitor_assign(&mut self, rhs: dr_mcontext_flags_t) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<dr_mcontext_flags_t> for dr_mcontext_flags_t {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        dr_mcontext_flags_t(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for dr_mcontext_flags_t {
    #[inline]
    fn bitand_assign(&mut self, rhs: dr_mcontext_flags_t) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct dr_mcontext_flags_t(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Copy, Clone)]
pub struct _dr_mcontext_t {
    pub size: usize,
    pub flags: dr_mcontext_flags_t,
    pub __bindgen_anon_1: _dr_mcontext_t__bindgen_ty_1,
    pub __bindgen_anon_2: _dr_mcontext_t__bindgen_ty_2,
    pub __bindgen_anon_3: _dr_mcontext_t__bindgen_ty_3,
    pub __bindgen_anon_4: _dr_mcontext_t__bindgen_ty_4,
    pub __bindgen_anon_5: _dr_mcontext_t__bindgen_ty_5,
    pub __bindgen_anon_6: _dr_mcontext_t__bindgen_ty_6,
    pub __bindgen_anon_7: _dr_mcontext_t__bindgen_ty_7,
    pub __bindgen_anon_8: _dr_mcontext_t__bindgen_ty_8,
    pub r8: reg_t,
    pub r9: reg_t,
    pub r10: reg_t,
    pub r11: reg_t,
    pub r12: reg_t,
    pub r13: reg_t,
    pub r14: reg_t,
    pub r15: reg_t,
    pub __bindgen_anon_9: _dr_mcontext_t__bindgen_ty_9,
    pub __bindgen_anon_10: _dr_mcontext_t__bindgen_ty_10,
    pub padding: [byte; 48usize],
    pub __bindgen_anon_11: _dr_mcontext_t__bindgen_ty_11,
    pub opmask: [dr_opmask_t; 8usize],
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_1 {
    pub xdi: reg_t,
    pub rdi: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_1"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_1>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_1"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_1>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_1::xdi"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_1, xdi) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_1::rdi"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_1, rdi) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_2 {
    pub xsi: reg_t,
    pub rsi: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_2"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_2>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_2"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_2>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_2::xsi"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_2, xsi) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_2::rsi"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_2, rsi) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_3 {
    pub xbp: reg_t,
    pub rbp: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_3"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_3>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_3"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_3>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_3::xbp"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_3, xbp) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_3::rbp"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_3, rbp) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_4 {
    pub xsp: reg_t,
    pub rsp: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_4"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_4>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_4"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_4>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_4::xsp"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_4, xsp) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_4::rsp"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_4, rsp) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_5 {
    pub xbx: reg_t,
    pub rbx: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_5"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_5>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_5"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_5>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_5::xbx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_5, xbx) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_5::rbx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_5, rbx) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_6 {
    pub xdx: reg_t,
    pub rdx: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_6"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_6>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_6"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_6>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_6::xdx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_6, xdx) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_6::rdx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_6, rdx) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_7 {
    pub xcx: reg_t,
    pub rcx: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_7"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_7>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_7"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_7>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_7::xcx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_7, xcx) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_7::rcx"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_7, rcx) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_8 {
    pub xax: reg_t,
    pub rax: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_8"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_8>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_8"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_8>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_8::xax"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_8, xax) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_8::rax"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_8, rax) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_9 {
    pub xflags: reg_t,
    pub rflags: reg_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_9"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_9>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_9"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_9>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_9::xflags"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_9, xflags) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_9::rflags"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_9, rflags) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_10 {
    pub xip: *mut byte,
    pub pc: *mut byte,
    pub rip: *mut byte,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_10"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_10>() - 8usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_10"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_10>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_10::xip"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_10, xip) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_10::pc"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_10, pc) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_10::rip"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_10, rip) - 0usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union _dr_mcontext_t__bindgen_ty_11 {
    pub simd: [dr_zmm_t; 32usize],
    pub ymm: [dr_zmm_t; 32usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t__bindgen_ty_11"][::core::mem::size_of::<_dr_mcontext_t__bindgen_ty_11>() - 2048usize];
    ["Alignment of _dr_mcontext_t__bindgen_ty_11"][::core::mem::align_of::<_dr_mcontext_t__bindgen_ty_11>() - 8usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_11::simd"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_11, simd) - 0usize];
    ["Offset of field: _dr_mcontext_t__bindgen_ty_11::ymm"]
        [::core::mem::offset_of!(_dr_mcontext_t__bindgen_ty_11, ymm) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_mcontext_t"][::core::mem::size_of::<_dr_mcontext_t>() - 2320usize];
    ["Alignment of _dr_mcontext_t"][::core::mem::align_of::<_dr_mcontext_t>() - 8usize];
    ["Offset of field: _dr_mcontext_t::size"][::core::mem::offset_of!(_dr_mcontext_t, size) - 0usize];
    ["Offset of field: _dr_mcontext_t::flags"][::core::mem::offset_of!(_dr_mcontext_t, flags) - 8usize];
    ["Offset of field: _dr_mcontext_t::r8"][::core::mem::offset_of!(_dr_mcontext_t, r8) - 80usize];
    ["Offset of field: _dr_mcontext_t::r9"][::core::mem::offset_of!(_dr_mcontext_t, r9) - 88usize];
    ["Offset of field: _dr_mcontext_t::r10"][::core::mem::offset_of!(_dr_mcontext_t, r10) - 96usize];
    ["Offset of field: _dr_mcontext_t::r11"][::core::mem::offset_of!(_dr_mcontext_t, r11) - 104usize];
    ["Offset of field: _dr_mcontext_t::r12"][::core::mem::offset_of!(_dr_mcontext_t, r12) - 112usize];
    ["Offset of field: _dr_mcontext_t::r13"][::core::mem::offset_of!(_dr_mcontext_t, r13) - 120usize];
    ["Offset of field: _dr_mcontext_t::r14"][::core::mem::offset_of!(_dr_mcontext_t, r14) - 128usize];
    ["Offset of field: _dr_mcontext_t::r15"][::core::mem::offset_of!(_dr_mcontext_t, r15) - 136usize];
    ["Offset of field: _dr_mcontext_t::padding"][::core::mem::offset_of!(_dr_mcontext_t, padding) - 160usize];
    ["Offset of field: _dr_mcontext_t::opmask"][::core::mem::offset_of!(_dr_mcontext_t, opmask) - 2256usize];
};
pub type dr_mcontext_t = _dr_mcontext_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _instrlist_t {
    _unused: [u8; 0],
}
pub type instrlist_t = _instrlist_t;
pub type module_data_t = _module_data_t;
impl dr_emit_flags_t {
    pub const DR_EMIT_DEFAULT: dr_emit_flags_t = dr_emit_flags_t(0);
}
impl dr_emit_flags_t {
    pub const DR_EMIT_STORE_TRANSLATIONS: dr_emit_flags_t = dr_emit_flags_t(1);
}
impl dr_emit_flags_t {
    pub const DR_EMIT_PERSISTABLE: dr_emit_flags_t = dr_emit_flags_t(2);
}
impl dr_emit_flags_t {
    pub const DR_EMIT_MUST_END_TRACE: dr_emit_flags_t = dr_emit_flags_t(4);
}
impl dr_emit_flags_t {
    pub const DR_EMIT_GO_NATIVE: dr_emit_flags_t = dr_emit_flags_t(8);
}
impl ::core::ops::BitOr<dr_emit_flags_t> for dr_emit_flags_t {
    type Output = Self;
    #[inline]
    fn bitor(self, other: Self) -> Self {
        dr_emit_flags_t(self.0 | other.0)
    }
}
impl ::core::ops::BitOrAssign for dr_emit_flags_t {
    #[inline]
    fn bitor_assign(&mut self, rhs: dr_emit_flags_t) {
        self.0 |= rhs.0;
    }
}
impl ::core::ops::BitAnd<dr_emit_flags_t> for dr_emit_flags_t {
    type Output = Self;
    #[inline]
    fn bitand(self, other: Self) -> Self {
        dr_emit_flags_t(self.0 & other.0)
    }
}
impl ::core::ops::BitAndAssign for dr_emit_flags_t {
    #[inline]
    fn bitand_assign(&mut self, rhs: dr_emit_flags_t) {
        self.0 &= rhs.0;
    }
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct dr_emit_flags_t(pub ::core::ffi::c_uint);
unsafe extern "C" {
    pub fn dr_register_bb_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(
                drcontext: *mut ::core::ffi::c_void,
                tag: *mut ::core::ffi::c_void,
                bb: *mut instrlist_t,
                for_trace: bool_,
                translating: bool_,
            ) -> dr_emit_flags_t,
        >,
    );
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _dr_fault_fragment_info_t {
    pub tag: *mut ::core::ffi::c_void,
    pub cache_start_pc: *mut byte,
    pub is_trace: bool_,
    pub app_code_consistent: bool_,
    pub ilist: *mut instrlist_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_fault_fragment_info_t"][::core::mem::size_of::<_dr_fault_fragment_info_t>() - 32usize];
    ["Alignment of _dr_fault_fragment_info_t"][::core::mem::align_of::<_dr_fault_fragment_info_t>() - 8usize];
    ["Offset of field: _dr_fault_fragment_info_t::tag"]
        [::core::mem::offset_of!(_dr_fault_fragment_info_t, tag) - 0usize];
    ["Offset of field: _dr_fault_fragment_info_t::cache_start_pc"]
        [::core::mem::offset_of!(_dr_fault_fragment_info_t, cache_start_pc) - 8usize];
    ["Offset of field: _dr_fault_fragment_info_t::is_trace"]
        [::core::mem::offset_of!(_dr_fault_fragment_info_t, is_trace) - 16usize];
    ["Offset of field: _dr_fault_fragment_info_t::app_code_consistent"]
        [::core::mem::offset_of!(_dr_fault_fragment_info_t, app_code_consistent) - 17usize];
    ["Offset of field: _dr_fault_fragment_info_t::ilist"]
        [::core::mem::offset_of!(_dr_fault_fragment_info_t, ilist) - 24usize];
};
pub type dr_fault_fragment_info_t = _dr_fault_fragment_info_t;
unsafe extern "C" {
    pub fn dr_register_thread_init_event(
        func: ::core::option::Option<unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void)>,
    );
}
unsafe extern "C" {
    pub fn dr_register_thread_exit_event(
        func: ::core::option::Option<unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void)>,
    );
}
unsafe extern "C" {
    pub fn dr_register_fork_init_event(
        func: ::core::option::Option<unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void)>,
    );
}
unsafe extern "C" {
    pub fn dr_register_module_load_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, info: *const module_data_t, loaded: bool_),
        >,
    );
}
unsafe extern "C" {
    pub fn dr_register_module_unload_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, info: *const module_data_t),
        >,
    );
}
pub const dr_kernel_xfer_type_t_DR_XFER_SIGNAL_DELIVERY: dr_kernel_xfer_type_t = 0;
pub const dr_kernel_xfer_type_t_DR_XFER_SIGNAL_RETURN: dr_kernel_xfer_type_t = 1;
pub type dr_kernel_xfer_type_t = ::core::ffi::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _dr_kernel_xfer_info_t {
    pub type_: dr_kernel_xfer_type_t,
    pub source_mcontext: *const dr_mcontext_t,
    pub target_pc: app_pc,
    pub target_xsp: reg_t,
    pub sig: ::core::ffi::c_int,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_kernel_xfer_info_t"][::core::mem::size_of::<_dr_kernel_xfer_info_t>() - 40usize];
    ["Alignment of _dr_kernel_xfer_info_t"][::core::mem::align_of::<_dr_kernel_xfer_info_t>() - 8usize];
    ["Offset of field: _dr_kernel_xfer_info_t::type_"][::core::mem::offset_of!(_dr_kernel_xfer_info_t, type_) - 0usize];
    ["Offset of field: _dr_kernel_xfer_info_t::source_mcontext"]
        [::core::mem::offset_of!(_dr_kernel_xfer_info_t, source_mcontext) - 8usize];
    ["Offset of field: _dr_kernel_xfer_info_t::target_pc"]
        [::core::mem::offset_of!(_dr_kernel_xfer_info_t, target_pc) - 16usize];
    ["Offset of field: _dr_kernel_xfer_info_t::target_xsp"]
        [::core::mem::offset_of!(_dr_kernel_xfer_info_t, target_xsp) - 24usize];
    ["Offset of field: _dr_kernel_xfer_info_t::sig"][::core::mem::offset_of!(_dr_kernel_xfer_info_t, sig) - 32usize];
};
pub type dr_kernel_xfer_info_t = _dr_kernel_xfer_info_t;
unsafe extern "C" {
    pub fn dr_register_kernel_xfer_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, info: *const dr_kernel_xfer_info_t),
        >,
    );
}
unsafe extern "C" {
    pub fn dr_register_filter_syscall_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, sysnum: ::core::ffi::c_int) -> bool_,
        >,
    );
}
unsafe extern "C" {
    pub fn dr_register_pre_syscall_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, sysnum: ::core::ffi::c_int) -> bool_,
        >,
    );
}
unsafe extern "C" {
    pub fn dr_register_post_syscall_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, sysnum: ::core::ffi::c_int),
        >,
    );
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _dr_siginfo_t {
    pub sig: ::core::ffi::c_int,
    pub drcontext: *mut ::core::ffi::c_void,
    pub mcontext: *mut dr_mcontext_t,
    pub raw_mcontext: *mut dr_mcontext_t,
    pub raw_mcontext_valid: bool_,
    pub access_address: *mut byte,
    pub blocked: bool_,
    pub fault_fragment_info: dr_fault_fragment_info_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _dr_siginfo_t"][::core::mem::size_of::<_dr_siginfo_t>() - 88usize];
    ["Alignment of _dr_siginfo_t"][::core::mem::align_of::<_dr_siginfo_t>() - 8usize];
    ["Offset of field: _dr_siginfo_t::sig"][::core::mem::offset_of!(_dr_siginfo_t, sig) - 0usize];
    ["Offset of field: _dr_siginfo_t::drcontext"][::core::mem::offset_of!(_dr_siginfo_t, drcontext) - 8usize];
    ["Offset of field: _dr_siginfo_t::mcontext"][::core::mem::offset_of!(_dr_siginfo_t, mcontext) - 16usize];
    ["Offset of field: _dr_siginfo_t::raw_mcontext"][::core::mem::offset_of!(_dr_siginfo_t, raw_mcontext) - 24usize];
    ["Offset of field: _dr_siginfo_t::raw_mcontext_valid"]
        [::core::mem::offset_of!(_dr_siginfo_t, raw_mcontext_valid) - 32usize];
    ["Offset of field: _dr_siginfo_t::access_address"]
        [::core::mem::offset_of!(_dr_siginfo_t, access_address) - 40usize];
    ["Offset of field: _dr_siginfo_t::blocked"][::core::mem::offset_of!(_dr_siginfo_t, blocked) - 48usize];
    ["Offset of field: _dr_siginfo_t::fault_fragment_info"]
        [::core::mem::offset_of!(_dr_siginfo_t, fault_fragment_info) - 56usize];
};
pub type dr_siginfo_t = _dr_siginfo_t;
pub const dr_signal_action_t_DR_SIGNAL_DELIVER: dr_signal_action_t = 0;
pub type dr_signal_action_t = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn dr_register_signal_event(
        func: ::core::option::Option<
            unsafe extern "C" fn(drcontext: *mut ::core::ffi::c_void, siginfo: *mut dr_siginfo_t) -> dr_signal_action_t,
        >,
    );
}
pub const OPSZ_0: _bindgen_ty_2 = 1;
pub const OPSZ_1: _bindgen_ty_2 = 2;
pub const OPSZ_2: _bindgen_ty_2 = 3;
pub const OPSZ_4: _bindgen_ty_2 = 4;
pub const OPSZ_8: _bindgen_ty_2 = 6;
pub type _bindgen_ty_2 = ::core::ffi::c_uint;
pub const DR_REG_NULL: _bindgen_ty_3 = 0;
pub const DR_REG_RAX: _bindgen_ty_3 = 1;
pub const DR_REG_RCX: _bindgen_ty_3 = 2;
pub const DR_REG_RDX: _bindgen_ty_3 = 3;
pub const DR_REG_RBX: _bindgen_ty_3 = 4;
pub const DR_REG_RSP: _bindgen_ty_3 = 5;
pub const DR_REG_RBP: _bindgen_ty_3 = 6;
pub const DR_REG_RSI: _bindgen_ty_3 = 7;
pub const DR_REG_RDI: _bindgen_ty_3 = 8;
pub const DR_REG_R8: _bindgen_ty_3 = 9;
pub const DR_REG_R9: _bindgen_ty_3 = 10;
pub const DR_REG_R10: _bindgen_ty_3 = 11;
pub const DR_REG_R11: _bindgen_ty_3 = 12;
pub const DR_REG_R12: _bindgen_ty_3 = 13;
pub const DR_REG_R13: _bindgen_ty_3 = 14;
pub const DR_REG_R14: _bindgen_ty_3 = 15;
pub const DR_REG_R15: _bindgen_ty_3 = 16;
pub const DR_REG_ECX: _bindgen_ty_3 = 18;
pub const DR_REG_CX: _bindgen_ty_3 = 34;
pub const DR_REG_XMM0: _bindgen_ty_3 = 77;
pub const DR_SEG_FS: _bindgen_ty_3 = 153;
pub const DR_SEG_GS: _bindgen_ty_3 = 154;
pub const DR_REG_YMM0: _bindgen_ty_3 = 188;
pub const DR_REG_K0: _bindgen_ty_3 = 316;
pub type _bindgen_ty_3 = ::core::ffi::c_uint;
pub type reg_id_t = ushort;
pub type opnd_size_t = byte;
unsafe extern "C" {
    pub fn opnd_create_reg(r: reg_id_t) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_create_immed_int(i: ptr_int_t, data_size: opnd_size_t) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_create_pc(pc: app_pc) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_create_instr(instr: *mut instr_t) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_create_base_disp(
        base_reg: reg_id_t,
        index_reg: reg_id_t,
        scale: ::core::ffi::c_int,
        disp: ::core::ffi::c_int,
        data_size: opnd_size_t,
    ) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_create_far_base_disp(
        seg: reg_id_t,
        base_reg: reg_id_t,
        index_reg: reg_id_t,
        scale: ::core::ffi::c_int,
        disp: ::core::ffi::c_int,
        data_size: opnd_size_t,
    ) -> opnd_t;
}
unsafe extern "C" {
    pub fn opnd_is_reg(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_immed_int(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_pc(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_base_disp(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_abs_addr(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_rel_addr(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_is_memory_reference(opnd: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_get_size(opnd: opnd_t) -> opnd_size_t;
}
unsafe extern "C" {
    pub fn opnd_set_size(opnd: *mut opnd_t, newsize: opnd_size_t);
}
unsafe extern "C" {
    pub fn opnd_get_reg(opnd: opnd_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn opnd_get_immed_int(opnd: opnd_t) -> ptr_int_t;
}
unsafe extern "C" {
    pub fn opnd_get_pc(opnd: opnd_t) -> app_pc;
}
unsafe extern "C" {
    pub fn opnd_get_base(opnd: opnd_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn opnd_get_disp(opnd: opnd_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn opnd_get_index(opnd: opnd_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn opnd_get_scale(opnd: opnd_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn opnd_get_segment(opnd: opnd_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn opnd_get_addr(opnd: opnd_t) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn opnd_num_regs_used(opnd: opnd_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn opnd_get_reg_used(opnd: opnd_t, index: ::core::ffi::c_int) -> reg_id_t;
}
unsafe extern "C" {
    pub fn reg_resize_to_opsz(reg: reg_id_t, sz: opnd_size_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn reg_is_gpr(reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn reg_is_strictly_xmm(reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn reg_is_strictly_ymm(reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn reg_is_strictly_zmm(reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn reg_is_opmask(reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn reg_to_pointer_sized(reg: reg_id_t) -> reg_id_t;
}
unsafe extern "C" {
    pub fn reg_get_size(reg: reg_id_t) -> opnd_size_t;
}
unsafe extern "C" {
    pub fn opnd_uses_reg(opnd: opnd_t, reg: reg_id_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_set_disp(opnd: *mut opnd_t, disp: ::core::ffi::c_int);
}
unsafe extern "C" {
    pub fn opnd_same(op1: opnd_t, op2: opnd_t) -> bool_;
}
unsafe extern "C" {
    pub fn opnd_size_in_bytes(size: opnd_size_t) -> uint;
}
unsafe extern "C" {
    pub fn reg_get_value(reg: reg_id_t, mc: *mut dr_mcontext_t) -> reg_t;
}
unsafe extern "C" {
    pub fn reg_get_value_ex(reg: reg_id_t, mc: *mut dr_mcontext_t, val: *mut byte) -> bool_;
}
unsafe extern "C" {
    pub fn reg_set_value(reg: reg_id_t, mc: *mut dr_mcontext_t, value: reg_t);
}
unsafe extern "C" {
    pub fn opnd_compute_address(opnd: opnd_t, mc: *mut dr_mcontext_t) -> app_pc;
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _module_handle_t {
    _unused: [u8; 0],
}
pub type module_handle_t = *mut _module_handle_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _module_names_t {
    pub module_name: *const ::core::ffi::c_char,
    pub file_name: *const ::core::ffi::c_char,
    pub inode: uint64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _module_names_t"][::core::mem::size_of::<_module_names_t>() - 24usize];
    ["Alignment of _module_names_t"][::core::mem::align_of::<_module_names_t>() - 8usize];
    ["Offset of field: _module_names_t::module_name"][::core::mem::offset_of!(_module_names_t, module_name) - 0usize];
    ["Offset of field: _module_names_t::file_name"][::core::mem::offset_of!(_module_names_t, file_name) - 8usize];
    ["Offset of field: _module_names_t::inode"][::core::mem::offset_of!(_module_names_t, inode) - 16usize];
};
pub type module_names_t = _module_names_t;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct _module_segment_data_t {
    pub start: app_pc,
    pub end: app_pc,
    pub prot: uint,
    pub offset: uint64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _module_segment_data_t"][::core::mem::size_of::<_module_segment_data_t>() - 32usize];
    ["Alignment of _module_segment_data_t"][::core::mem::align_of::<_module_segment_data_t>() - 8usize];
    ["Offset of field: _module_segment_data_t::start"][::core::mem::offset_of!(_module_segment_data_t, start) - 0usize];
    ["Offset of field: _module_segment_data_t::end"][::core::mem::offset_of!(_module_segment_data_t, end) - 8usize];
    ["Offset of field: _module_segment_data_t::prot"][::core::mem::offset_of!(_module_segment_data_t, prot) - 16usize];
    ["Offset of field: _module_segment_data_t::offset"]
        [::core::mem::offset_of!(_module_segment_data_t, offset) - 24usize];
};
pub type module_segment_data_t = _module_segment_data_t;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct _module_data_t {
    pub __bindgen_anon_1: _module_data_t__bindgen_ty_1,
    pub end: app_pc,
    pub entry_point: app_pc,
    pub flags: uint,
    pub names: module_names_t,
    pub full_path: *mut ::core::ffi::c_char,
    pub contiguous: bool_,
    pub num_segments: uint,
    pub segments: *mut module_segment_data_t,
    pub timestamp: uint,
    pub preferred_base: app_pc,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub union _module_data_t__bindgen_ty_1 {
    pub start: app_pc,
    pub handle: module_handle_t,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _module_data_t__bindgen_ty_1"][::core::mem::size_of::<_module_data_t__bindgen_ty_1>() - 8usize];
    ["Alignment of _module_data_t__bindgen_ty_1"][::core::mem::align_of::<_module_data_t__bindgen_ty_1>() - 8usize];
    ["Offset of field: _module_data_t__bindgen_ty_1::start"]
        [::core::mem::offset_of!(_module_data_t__bindgen_ty_1, start) - 0usize];
    ["Offset of field: _module_data_t__bindgen_ty_1::handle"]
        [::core::mem::offset_of!(_module_data_t__bindgen_ty_1, handle) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of _module_data_t"][::core::mem::size_of::<_module_data_t>() - 96usize];
    ["Alignment of _module_data_t"][::core::mem::align_of::<_module_data_t>() - 8usize];
    ["Offset of field: _module_data_t::end"][::core::mem::offset_of!(_module_data_t, end) - 8usize];
    ["Offset of field: _module_data_t::entry_point"][::core::mem::offset_of!(_module_data_t, entry_point) - 16usize];
    ["Offset of field: _module_data_t::flags"][::core::mem::offset_of!(_module_data_t, flags) - 24usize];
    ["Offset of field: _module_data_t::names"][::core::mem::offset_of!(_module_data_t, names) - 32usize];
    ["Offset of field: _module_data_t::full_path"][::core::mem::offset_of!(_module_data_t, full_path) - 56usize];
    ["Offset of field: _module_data_t::contiguous"][::core::mem::offset_of!(_module_data_t, contiguous) - 64usize];
    ["Offset of field: _module_data_t::num_segments"][::core::mem::offset_of!(_module_data_t, num_segments) - 68usize];
    ["Offset of field: _module_data_t::segments"][::core::mem::offset_of!(_module_data_t, segments) - 72usize];
    ["Offset of field: _module_data_t::timestamp"][::core::mem::offset_of!(_module_data_t, timestamp) - 80usize];
    ["Offset of field: _module_data_t::preferred_base"]
        [::core::mem::offset_of!(_module_data_t, preferred_base) - 88usize];
};
unsafe extern "C" {
    pub fn dr_get_main_module() -> *mut module_data_t;
}
unsafe extern "C" {
    pub fn dr_free_module_data(data: *mut module_data_t);
}
pub const dr_state_flags_t_DR_STATE_ALL: dr_state_flags_t = -2;
pub const dr_state_flags_t_DR_STATE_GO_NATIVE: dr_state_flags_t = -1;
pub type dr_state_flags_t = ::core::ffi::c_int;
unsafe extern "C" {
    pub fn dr_switch_to_app_state(drcontext: *mut ::core::ffi::c_void);
}
unsafe extern "C" {
    pub fn dr_switch_to_dr_state_ex(drcontext: *mut ::core::ffi::c_void, flags: dr_state_flags_t);
}
unsafe extern "C" {
    pub fn dr_safe_read(
        base: *const ::core::ffi::c_void,
        size: usize,
        out_buf: *mut ::core::ffi::c_void,
        bytes_read: *mut usize,
    ) -> bool_;
}
unsafe extern "C" {
    pub fn dr_safe_write(
        base: *mut ::core::ffi::c_void,
        size: usize,
        in_buf: *const ::core::ffi::c_void,
        bytes_written: *mut usize,
    ) -> bool_;
}
unsafe extern "C" {
    pub fn dr_set_client_name(name: *const ::core::ffi::c_char, report_URL: *const ::core::ffi::c_char) -> bool_;
}
unsafe extern "C" {
    pub fn dr_exit_process(exit_code: ::core::ffi::c_int);
}
pub const dr_alloc_flags_t_DR_ALLOC_NON_HEAP: dr_alloc_flags_t = 1;
pub const dr_alloc_flags_t_DR_ALLOC_LOW_2GB: dr_alloc_flags_t = 16;
pub type dr_alloc_flags_t = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn dr_global_alloc(size: usize) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_global_free(mem: *mut ::core::ffi::c_void, size: usize);
}
unsafe extern "C" {
    pub fn dr_custom_alloc(
        drcontext: *mut ::core::ffi::c_void,
        flags: dr_alloc_flags_t,
        size: usize,
        prot: uint,
        addr: *mut ::core::ffi::c_void,
    ) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_raw_mem_alloc(size: usize, prot: uint, addr: *mut ::core::ffi::c_void) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_raw_mem_free(addr: *mut ::core::ffi::c_void, size: usize) -> bool_;
}
unsafe extern "C" {
    pub fn dr_mark_safe_to_suspend(drcontext: *mut ::core::ffi::c_void, enter: bool_) -> bool_;
}
unsafe extern "C" {
    pub fn dr_syscall_get_param(drcontext: *mut ::core::ffi::c_void, param_num: ::core::ffi::c_int) -> reg_t;
}
unsafe extern "C" {
    pub fn dr_syscall_set_param(drcontext: *mut ::core::ffi::c_void, param_num: ::core::ffi::c_int, new_value: reg_t);
}
unsafe extern "C" {
    pub fn dr_syscall_get_result(drcontext: *mut ::core::ffi::c_void) -> reg_t;
}
unsafe extern "C" {
    pub fn dr_syscall_set_result(drcontext: *mut ::core::ffi::c_void, value: reg_t);
}
unsafe extern "C" {
    pub fn dr_syscall_set_sysnum(drcontext: *mut ::core::ffi::c_void, new_num: ::core::ffi::c_int);
}
unsafe extern "C" {
    pub fn dr_open_file(fname: *const ::core::ffi::c_char, mode_flags: uint) -> file_t;
}
unsafe extern "C" {
    pub fn dr_close_file(f: file_t);
}
unsafe extern "C" {
    pub fn dr_write_file(f: file_t, buf: *const ::core::ffi::c_void, count: usize) -> isize;
}
unsafe extern "C" {
    pub fn dr_read_file(f: file_t, buf: *mut ::core::ffi::c_void, count: usize) -> isize;
}
unsafe extern "C" {
    pub fn dr_get_current_drcontext() -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_get_tls_field(drcontext: *mut ::core::ffi::c_void) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_set_tls_field(drcontext: *mut ::core::ffi::c_void, value: *mut ::core::ffi::c_void);
}
unsafe extern "C" {
    pub fn dr_get_dr_segment_base(tls_register: reg_id_t) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn dr_raw_tls_calloc(tls_register: *mut reg_id_t, offset: *mut uint, num_slots: uint, alignment: uint)
    -> bool_;
}
unsafe extern "C" {
    pub fn dr_raw_tls_opnd(drcontext: *mut ::core::ffi::c_void, tls_register: reg_id_t, tls_offs: uint) -> opnd_t;
}
unsafe extern "C" {
    pub fn dr_thread_yield();
}
unsafe extern "C" {
    pub fn dr_unlink_flush_region(start: app_pc, size: usize) -> bool_;
}
unsafe extern "C" {
    pub fn dr_fragment_app_pc(tag: *mut ::core::ffi::c_void) -> app_pc;
}
unsafe extern "C" {
    pub fn dr_prepopulate_cache(tags: *mut app_pc, tags_count: usize) -> bool_;
}
pub const dr_indirect_branch_type_t_DR_INDIRECT_RETURN: dr_indirect_branch_type_t = 0;
pub const dr_indirect_branch_type_t_DR_INDIRECT_CALL: dr_indirect_branch_type_t = 1;
pub const dr_indirect_branch_type_t_DR_INDIRECT_JUMP: dr_indirect_branch_type_t = 2;
pub type dr_indirect_branch_type_t = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn dr_prepopulate_indirect_targets(
        branch_type: dr_indirect_branch_type_t,
        tags: *mut app_pc,
        tags_count: usize,
    ) -> bool_;
}
pub const _dr_opnd_query_flags_t_DR_QUERY_DEFAULT: _dr_opnd_query_flags_t = 2;
pub const _dr_opnd_query_flags_t_DR_QUERY_INCLUDE_ALL: _dr_opnd_query_flags_t = 3;
pub type _dr_opnd_query_flags_t = ::core::ffi::c_uint;
pub use self::_dr_opnd_query_flags_t as dr_opnd_query_flags_t;
unsafe extern "C" {
    pub fn instr_create(drcontext: *mut ::core::ffi::c_void) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_destroy(drcontext: *mut ::core::ffi::c_void, instr: *mut instr_t);
}
unsafe extern "C" {
    pub fn instr_get_next(instr: *mut instr_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_get_next_app(instr: *mut instr_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_get_prev(instr: *mut instr_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_get_note(instr: *mut instr_t) -> *mut ::core::ffi::c_void;
}
unsafe extern "C" {
    pub fn instr_is_interrupt(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_app(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_encode(drcontext: *mut ::core::ffi::c_void, instr: *mut instr_t, pc: *mut byte) -> *mut byte;
}
unsafe extern "C" {
    pub fn instr_allocate_raw_bits(drcontext: *mut ::core::ffi::c_void, instr: *mut instr_t, num_bytes: uint);
}
unsafe extern "C" {
    pub fn instr_get_raw_bits(instr: *mut instr_t) -> *mut byte;
}
unsafe extern "C" {
    pub fn instr_set_operands_valid(instr: *mut instr_t, valid: bool_);
}
unsafe extern "C" {
    pub fn instr_clone(drcontext: *mut ::core::ffi::c_void, orig: *mut instr_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_get_app_pc(instr: *mut instr_t) -> app_pc;
}
unsafe extern "C" {
    pub fn instr_get_opcode(instr: *mut instr_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn instr_num_srcs(instr: *mut instr_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn instr_num_dsts(instr: *mut instr_t) -> ::core::ffi::c_int;
}
unsafe extern "C" {
    pub fn instr_get_src(instr: *mut instr_t, pos: uint) -> opnd_t;
}
unsafe extern "C" {
    pub fn instr_get_dst(instr: *mut instr_t, pos: uint) -> opnd_t;
}
unsafe extern "C" {
    pub fn instr_get_arith_flags(instr: *mut instr_t, flags: dr_opnd_query_flags_t) -> uint;
}
unsafe extern "C" {
    pub fn instr_set_meta_may_fault(instr: *mut instr_t, val: bool_);
}
unsafe extern "C" {
    pub fn instr_set_translation(instr: *mut instr_t, addr: app_pc) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_get_prefix_flag(instr: *mut instr_t, prefix: uint) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_predicated(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_writes_to_reg(instr: *mut instr_t, reg: reg_id_t, flags: dr_opnd_query_flags_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_reads_memory(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_writes_memory(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_call(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_return(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_cti(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_cbr(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_syscall(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_is_label(instr: *mut instr_t) -> bool_;
}
unsafe extern "C" {
    pub fn instr_create_0dst_0src(drcontext: *mut ::core::ffi::c_void, opcode: ::core::ffi::c_int) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_create_0dst_1src(
        drcontext: *mut ::core::ffi::c_void,
        opcode: ::core::ffi::c_int,
        src: opnd_t,
    ) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_create_0dst_2src(
        drcontext: *mut ::core::ffi::c_void,
        opcode: ::core::ffi::c_int,
        src1: opnd_t,
        src2: opnd_t,
    ) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_create_1dst_1src(
        drcontext: *mut ::core::ffi::c_void,
        opcode: ::core::ffi::c_int,
        dst: opnd_t,
        src: opnd_t,
    ) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_create_1dst_2src(
        drcontext: *mut ::core::ffi::c_void,
        opcode: ::core::ffi::c_int,
        dst: opnd_t,
        src1: opnd_t,
        src2: opnd_t,
    ) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instr_create_2dst_2src(
        drcontext: *mut ::core::ffi::c_void,
        opcode: ::core::ffi::c_int,
        dst1: opnd_t,
        dst2: opnd_t,
        src1: opnd_t,
        src2: opnd_t,
    ) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn decode_from_copy(
        drcontext: *mut ::core::ffi::c_void,
        copy_pc: *mut byte,
        orig_pc: *mut byte,
        instr: *mut instr_t,
    ) -> *mut byte;
}
unsafe extern "C" {
    pub fn decode_opcode_name(opcode: ::core::ffi::c_int) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    pub fn instrlist_meta_preinsert(ilist: *mut instrlist_t, where_: *mut instr_t, instr: *mut instr_t);
}
unsafe extern "C" {
    pub fn instrlist_meta_postinsert(ilist: *mut instrlist_t, where_: *mut instr_t, instr: *mut instr_t);
}
unsafe extern "C" {
    pub fn instrlist_meta_append(ilist: *mut instrlist_t, instr: *mut instr_t);
}
unsafe extern "C" {
    pub fn dr_insert_clean_call(
        drcontext: *mut ::core::ffi::c_void,
        ilist: *mut instrlist_t,
        where_: *mut instr_t,
        callee: *mut ::core::ffi::c_void,
        save_fpstate: bool_,
        num_args: uint,
        ...
    );
}
unsafe extern "C" {
    pub fn dr_get_mcontext(drcontext: *mut ::core::ffi::c_void, context: *mut dr_mcontext_t) -> bool_;
}
unsafe extern "C" {
    pub fn dr_set_mcontext(drcontext: *mut ::core::ffi::c_void, context: *mut dr_mcontext_t) -> bool_;
}
unsafe extern "C" {
    pub fn instrlist_first_app(ilist: *mut instrlist_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instrlist_preinsert(ilist: *mut instrlist_t, where_: *mut instr_t, instr: *mut instr_t);
}
unsafe extern "C" {
    pub fn instrlist_replace(ilist: *mut instrlist_t, oldinst: *mut instr_t, newinst: *mut instr_t) -> *mut instr_t;
}
unsafe extern "C" {
    pub fn instrlist_remove(ilist: *mut instrlist_t, instr: *mut instr_t);
}
pub const OP_LABEL: _bindgen_ty_9 = 3;
pub const OP_or: _bindgen_ty_9 = 5;
pub const OP_sub: _bindgen_ty_9 = 10;
pub const OP_xor: _bindgen_ty_9 = 12;
pub const OP_cmp: _bindgen_ty_9 = 14;
pub const OP_inc: _bindgen_ty_9 = 16;
pub const OP_push_imm: _bindgen_ty_9 = 19;
pub const OP_call: _bindgen_ty_9 = 42;
pub const OP_jmp: _bindgen_ty_9 = 46;
pub const OP_jecxz: _bindgen_ty_9 = 54;
pub const OP_mov_ld: _bindgen_ty_9 = 55;
pub const OP_mov_st: _bindgen_ty_9 = 56;
pub const OP_mov_imm: _bindgen_ty_9 = 57;
pub const OP_lea: _bindgen_ty_9 = 61;
pub const OP_xchg: _bindgen_ty_9 = 62;
pub const OP_nop_modrm: _bindgen_ty_9 = 101;
pub const OP_movntps: _bindgen_ty_9 = 102;
pub const OP_movntpd: _bindgen_ty_9 = 103;
pub const OP_rdtsc: _bindgen_ty_9 = 105;
pub const OP_jnz: _bindgen_ty_9 = 157;
pub const OP_cpuid: _bindgen_ty_9 = 184;
pub const OP_bt: _bindgen_ty_9 = 185;
pub const OP_shld: _bindgen_ty_9 = 186;
pub const OP_bts: _bindgen_ty_9 = 188;
pub const OP_shrd: _bindgen_ty_9 = 189;
pub const OP_cmpxchg: _bindgen_ty_9 = 190;
pub const OP_btr: _bindgen_ty_9 = 192;
pub const OP_movzx: _bindgen_ty_9 = 195;
pub const OP_btc: _bindgen_ty_9 = 197;
pub const OP_movnti: _bindgen_ty_9 = 202;
pub const OP_movntq: _bindgen_ty_9 = 226;
pub const OP_movntdq: _bindgen_ty_9 = 227;
pub const OP_maskmovq: _bindgen_ty_9 = 242;
pub const OP_maskmovdqu: _bindgen_ty_9 = 243;
pub const OP_rol: _bindgen_ty_9 = 253;
pub const OP_ror: _bindgen_ty_9 = 254;
pub const OP_rcl: _bindgen_ty_9 = 255;
pub const OP_rcr: _bindgen_ty_9 = 256;
pub const OP_shl: _bindgen_ty_9 = 257;
pub const OP_shr: _bindgen_ty_9 = 258;
pub const OP_sar: _bindgen_ty_9 = 259;
pub const OP_cmpxchg8b: _bindgen_ty_9 = 278;
pub const OP_fxsave32: _bindgen_ty_9 = 279;
pub const OP_mfence: _bindgen_ty_9 = 284;
pub const OP_clflush: _bindgen_ty_9 = 285;
pub const OP_sfence: _bindgen_ty_9 = 286;
pub const OP_prefetchnta: _bindgen_ty_9 = 287;
pub const OP_prefetcht0: _bindgen_ty_9 = 288;
pub const OP_prefetcht1: _bindgen_ty_9 = 289;
pub const OP_prefetcht2: _bindgen_ty_9 = 290;
pub const OP_prefetch: _bindgen_ty_9 = 291;
pub const OP_prefetchw: _bindgen_ty_9 = 292;
pub const OP_movups: _bindgen_ty_9 = 293;
pub const OP_nop: _bindgen_ty_9 = 381;
pub const OP_rep_movs: _bindgen_ty_9 = 388;
pub const OP_rep_stos: _bindgen_ty_9 = 390;
pub const OP_rep_lods: _bindgen_ty_9 = 392;
pub const OP_rep_cmps: _bindgen_ty_9 = 394;
pub const OP_repne_cmps: _bindgen_ty_9 = 395;
pub const OP_rep_scas: _bindgen_ty_9 = 397;
pub const OP_repne_scas: _bindgen_ty_9 = 398;
pub const OP_fnsave: _bindgen_ty_9 = 426;
pub const OP_movntss: _bindgen_ty_9 = 540;
pub const OP_movntsd: _bindgen_ty_9 = 541;
pub const OP_rdtscp: _bindgen_ty_9 = 620;
pub const OP_xsave32: _bindgen_ty_9 = 633;
pub const OP_xsaveopt32: _bindgen_ty_9 = 635;
pub const OP_vmovups: _bindgen_ty_9 = 638;
pub const OP_vmovntps: _bindgen_ty_9 = 655;
pub const OP_vmovntpd: _bindgen_ty_9 = 656;
pub const OP_vmovntdq: _bindgen_ty_9 = 767;
pub const OP_vmaskmovdqu: _bindgen_ty_9 = 782;
pub const OP_vmaskmovps: _bindgen_ty_9 = 884;
pub const OP_vmaskmovpd: _bindgen_ty_9 = 885;
pub const OP_fxsave64: _bindgen_ty_9 = 955;
pub const OP_xsave64: _bindgen_ty_9 = 957;
pub const OP_xsaveopt64: _bindgen_ty_9 = 959;
pub const OP_rdrand: _bindgen_ty_9 = 960;
pub const OP_rdseed: _bindgen_ty_9 = 965;
pub const OP_rorx: _bindgen_ty_9 = 1066;
pub const OP_vpmaskmovd: _bindgen_ty_9 = 1086;
pub const OP_vpmaskmovq: _bindgen_ty_9 = 1087;
pub const OP_xsavec32: _bindgen_ty_9 = 1103;
pub const OP_xsavec64: _bindgen_ty_9 = 1104;
pub const OP_kmovw: _bindgen_ty_9 = 1107;
pub const OP_serialize: _bindgen_ty_9 = 1443;
pub const OP_movdiri: _bindgen_ty_9 = 1444;
pub const OP_movdir64b: _bindgen_ty_9 = 1445;
pub const OP_enqcmd: _bindgen_ty_9 = 1446;
pub const OP_enqcmds: _bindgen_ty_9 = 1447;
pub const OP_clflushopt: _bindgen_ty_9 = 1449;
pub const OP_clwb: _bindgen_ty_9 = 1450;
pub const OP_cldemote: _bindgen_ty_9 = 1451;
pub type _bindgen_ty_9 = ::core::ffi::c_uint;
unsafe extern "C" {
    pub fn dr_client_main(id: client_id_t, argc: ::core::ffi::c_int, argv: *mut *const ::core::ffi::c_char);
}
