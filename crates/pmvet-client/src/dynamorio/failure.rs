//! How the client gives up.

use std::sync::OnceLock;

use super::bindings::*;

use pmvet_events::shm::Header;

/// The exit status of a target that the client gave up on.
const FAILED_EXIT_STATUS: i32 = 70;

/// Where pmvet reads why the client failed.
static HEADER: OnceLock<&Header> = OnceLock::new();

/// From now on pmvet learns of failures through the shared memory.
pub(crate) fn report_failures_to(header: &'static Header) {
    if HEADER.set(header).is_err() {
        fail("the client was loaded twice");
    }
}

/// Ends the target with a message: the client cannot do its work, and a run with missing events must not look complete.
pub(crate) fn fail(message: &str) -> ! {
    if HEADER.get().is_none_or(|header| header.fail(message)) {
        print_to_stderr(message);
    }
    // SAFETY: does not return.
    unsafe { dr_exit_process(FAILED_EXIT_STATUS) };
    unreachable!()
}

fn print_to_stderr(message: &str) {
    let line = format!("pmvet: {message}\n");
    // SAFETY: the buffer is valid for its length, and DynamoRIO does not change its standard error.
    unsafe { dr_write_file(our_stderr, line.as_ptr().cast(), line.len()) };
}
