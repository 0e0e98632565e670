//! The system call under way, from within DynamoRIO's events before and after it.

use core::ffi::c_void;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::bindings::*;
use super::read_c_string;

/// Arguments and result of a system call.
#[derive(Debug)]
pub(crate) struct Syscall(*mut c_void);

impl Syscall {
    /// # Safety
    ///
    /// `dc` is the context of a system call event of this thread, which lasts as long as the value.
    pub(crate) unsafe fn new(dc: *mut c_void) -> Self {
        Self(dc)
    }

    /// An argument, counted from 0.
    pub(crate) fn get(&self, index: i32) -> u64 {
        // SAFETY: from within a system call event of this thread.
        unsafe { dr_syscall_get_param(self.0, index) }
    }

    /// An argument that is an `int`, a file descriptor for example.
    pub(crate) fn fd(&self, index: i32) -> i32 {
        self.get(index) as i32
    }

    /// Changes an argument for the kernel and for the target.
    pub(crate) fn set(&self, index: i32, value: u64) {
        // SAFETY: as above.
        unsafe { dr_syscall_set_param(self.0, index, value) }
    }

    /// Makes it another call.
    pub(crate) fn set_number(&self, number: i64) {
        // SAFETY: as above.
        unsafe { dr_syscall_set_sysnum(self.0, number as i32) }
    }

    pub(crate) fn result(&self) -> i64 {
        // SAFETY: as above; only used after the call.
        unsafe { dr_syscall_get_result(self.0) as i64 }
    }

    pub(crate) fn set_result(&self, result: i64) {
        // SAFETY: as above; before a call this is only used if the event skips it.
        unsafe { dr_syscall_set_result(self.0, result as u64) }
    }

    /// The target's stack pointer.
    pub(crate) fn stack_pointer(&self) -> u64 {
        // SAFETY: all-zero is a valid value; size and flags are set as DynamoRIO wants them, and this is within a system call event.
        unsafe {
            let mut context: dr_mcontext_t = std::mem::zeroed();
            context.size = size_of::<dr_mcontext_t>();
            context.flags = dr_mcontext_flags_t::DR_MC_CONTROL;
            dr_get_mcontext(self.0, &raw mut context);
            reg_get_value(DR_REG_RSP as reg_id_t, &raw mut context)
        }
    }

    /// A path argument, made absolute.
    pub(crate) fn path(&self, directory: Option<i32>, index: i32) -> Option<PathBuf> {
        let text = read_c_string(self.get(index))?;
        let path = PathBuf::from(OsString::from_vec(text));
        if path.is_absolute() {
            return Some(path);
        }
        let base = match directory.map(|i| self.fd(i)) {
            None | Some(libc::AT_FDCWD) => std::fs::read_link("/proc/self/cwd").ok()?,
            Some(fd) => std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?,
        };
        Some(base.join(path))
    }
}
