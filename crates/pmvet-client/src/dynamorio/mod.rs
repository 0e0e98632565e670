//! The boundary to DynamoRIO and the kernel.
//!
//! Whatever needs a pointer from DynamoRIO or a raw system call is wrapped here, as safe functions where possible. This
//! module knows nothing about persistent memory, and uses no other top module of this crate. Elsewhere only `instrument`,
//! which takes instructions apart, and the callbacks in `events` name DynamoRIO's types.

pub(crate) mod bindings;
pub(crate) mod bytes;
mod code_cache;
pub(crate) mod emitter;
mod failure;
mod global;
mod heap;
pub(crate) mod instructions;
mod kernel;
mod memory;
mod memory_map;
mod modules;
mod registers;
mod signal_action;
mod syscall;
mod tls;

pub(crate) use code_cache::{flush_code, retain_code, translate};
pub(crate) use failure::{fail, report_failures_to};
pub(crate) use global::Global;
pub(crate) use kernel::{
    monotonic_nanos, os_thread, parent_process, process, process_lives, sleep_nanos, thread_cpu_nanos,
    thread_is_runnable, thread_lives, while_safe_to_suspend, yield_thread,
};
pub(crate) use memory::{
    alloc_low, alloc_pages, free_pages, is_mapped, join_pages, map_stage, read_c_string, read_memory, read_word,
    write_memory,
};
pub(crate) use memory_map::{Inode, Region, regions};
pub(crate) use modules::{Module, executable, is_executable_at};
pub(crate) use registers::{integer_registers, registers, restore_argument, set_random_number, set_time_stamp};
pub(crate) use signal_action::{SignalAction, die_of_signal, swap_signal_action};
pub(crate) use syscall::Syscall;
pub(crate) use tls::{TLS, Tls, set_thread_field, thread_field};
