//! What a sandboxed program may do as root.
//!
//! Root on the machine, or in a container, may change things that no view of the file system makes private: the clock, kernel
//! modules, disks. A sandboxed program keeps what belongs to files and users, and loses the rest. So does the main thread of pmvet:
//! a process reaches its stand-ins through pmvet's open files, which the kernel allows only if pmvet has no capability that
//! the process lacks.

use std::io;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Device nodes, which `MKNOD` is for, do not work in a view.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// Whether the calling thread may mount file systems.
pub(super) fn may_mount() -> bool {
    capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// An ordinary user keeps nothing.
fn kept() -> CapabilitySet {
    if geteuid().is_root() { KEPT } else { CapabilitySet::empty() }
}

/// The calling thread keeps only what a sandboxed program may have, and no program that it starts gets more. If root's programs got
/// capabilities back, the kernel would treat them as programs that gain rights, and would not give them the same addresses in every
/// run.
pub(super) fn drop_for_good() -> io::Result<()> {
    let kept = kept();
    for capability in (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if !kept.contains(capability) {
            // It fails for numbers that the kernel has no capability for.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    drop_most()
}

/// The calling thread keeps only what a sandboxed program may have.
pub(super) fn drop_most() -> io::Result<()> {
    let (kept, mut own) = (kept(), capabilities(None)?);
    own.permitted &= kept;
    own.effective &= kept;
    own.inheritable &= kept;
    Ok(set_capabilities(None, own)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kept_capabilities_have_the_numbers_of_the_kernel() {
        let numbers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 14, 18, 23, 27, 29, 31];
        assert_eq!(KEPT.bits(), numbers.iter().fold(0, |bits, number| bits | 1 << number));
        assert_eq!(CapabilitySet::SYS_ADMIN.bits(), 1 << 21);
    }

    #[test]
    fn a_thread_loses_the_rest() {
        let dropped = std::thread::spawn(|| {
            drop_most().unwrap();
            capabilities(None).unwrap()
        });
        let own = dropped.join().unwrap();
        assert!(KEPT.contains(own.effective) && KEPT.contains(own.permitted) && KEPT.contains(own.inheritable));
    }
}
