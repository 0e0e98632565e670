//! Kinds of events as small numbers, so that counting them is an addition.

use pmvet_events::event::AtomicKind;
use pmvet_events::{What, wire};

/// The name of each kind, by number.
pub(crate) const NAMES: [&str; COUNT] = [
    "store",
    "nt-store",
    "kernel-store",
    "load",
    "rmw",
    "clflush",
    "clflushopt",
    "clwb",
    "sfence",
    "mfence",
    "locked-fence",
    "serializing-fence",
    "unsupported",
    "file",
    "map",
    "unmap",
    "file-write",
    "file-zero",
    "file-resize",
    "msync",
    "fsync",
    "fdatasync",
    "sync_file_range",
    "file-rename",
    "file-unlink",
    "thread-start",
    "thread-exit",
    "thread-create",
    "thread-join",
    "acquire",
    "release",
    "cond-wait",
    "cond-woken",
    "cond-signal",
    "cond-broadcast",
    "barrier-enter",
    "barrier-leave",
    "sem-post",
    "sem-acquire",
    "process-start",
    "process-exit",
    "exec",
    "module",
    "marker",
    "interrupted",
    "atomic",
    "atomic-failed",
    "atomic-found",
    "allocate",
    "thread-detach",
    "step",
    "file-read",
    "atomic-stored",
    "tx-begin",
    "tx-add",
    "tx-allocate",
    "tx-free",
    "tx-commit",
    "tx-abort",
    "tx-end",
    "tx-persist",
    "input",
    "output",
    "connection",
    "request",
    "reply",
];

pub(crate) const COUNT: usize = 66;

/// The number of an event's kind.
#[inline]
pub(crate) fn index(what: &What<'_>) -> usize {
    match what {
        What::Store { how, .. } => *how as usize,
        What::Load { .. } => 3,
        What::Rmw { .. } => 4,
        What::Flush { how, .. } => 5 + *how as usize,
        What::Fence { how } => 8 + *how as usize,
        What::Unsupported { .. } => 12,
        What::File { .. } => 13,
        What::Map { .. } => 14,
        What::Unmap { .. } => 15,
        What::FileWrite { .. } => 16,
        What::FileZero { .. } => 17,
        What::FileResize { .. } => 18,
        What::FileSync { how, .. } => 19 + *how as usize,
        What::FileRename { .. } => 23,
        What::FileUnlink { .. } => 24,
        What::ThreadStart { .. } => 25,
        What::ThreadExit => 26,
        What::ThreadCreate { .. } => 27,
        What::ThreadJoin { .. } => 28,
        What::Acquire { .. } => 29,
        What::Release { .. } => 30,
        What::Sync { op, .. } => 31 + *op as usize,
        What::ProcessStart { .. } => 39,
        What::ProcessExit { .. } => 40,
        What::Exec { .. } => 41,
        What::Module { .. } => 42,
        What::Marker { .. } => 43,
        What::Interrupted { .. } => 44,
        What::Atomic { how: AtomicKind::Stored, .. } => 52,
        What::Atomic { how, .. } => 45 + *how as usize,
        What::Allocate { .. } => 48,
        What::ThreadDetach { .. } => 49,
        What::Step { .. } => 50,
        What::FileRead { .. } => 51,
        What::Transaction { op, .. } => 53 + *op as usize,
        What::Input { .. } => 61,
        What::Output { .. } => 62,
        What::Connection { .. } => 63,
        What::Request { .. } => 64,
        What::Reply { .. } => 65,
    }
}

/// The number of the event's kind by the kind of a ring record, for accesses, flushes and fences.
pub(crate) const OF_RECORD: [u8; 256] = {
    let mut numbers = [0; 256];
    numbers[wire::STORE as usize] = 0;
    numbers[wire::STORE_NT as usize] = 1;
    numbers[wire::LOAD as usize] = 3;
    numbers[wire::RMW as usize] = 4;
    numbers[wire::RMW_FAILED as usize] = 4;
    numbers[wire::RMW_DISCARDING as usize] = 4;
    numbers[wire::CLFLUSH as usize] = 5;
    numbers[wire::CLFLUSHOPT as usize] = 6;
    numbers[wire::CLWB as usize] = 7;
    numbers[wire::SFENCE as usize] = 8;
    numbers[wire::MFENCE as usize] = 9;
    numbers[wire::FENCE_LOCKED as usize] = 10;
    numbers[wire::FENCE_SERIALIZING as usize] = 11;
    numbers
};

/// What a kind does to PM, coarsely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Store,
    Load,
    Rmw,
    Flush,
    Fence,
    Other,
}

impl Class {
    pub(crate) const NAMES: [&str; 6] = ["store", "load", "rmw", "flush", "fence", "other"];

    pub(crate) const COUNT: usize = Self::NAMES.len();

    /// By kind.
    const OF: [Class; COUNT] = {
        let mut of = [Class::Other; COUNT];
        let mut kind = 0;
        while kind < 12 {
            of[kind] = match kind {
                0..=2 => Class::Store,
                3 => Class::Load,
                4 => Class::Rmw,
                5..=7 => Class::Flush,
                _ => Class::Fence,
            };
            kind += 1;
        }
        of
    };

    #[inline]
    pub(crate) fn of_kind(kind: usize) -> Self {
        Self::OF[kind]
    }
}

/// The number of the kind called `name`.
pub(crate) fn parse(name: &str) -> Result<usize, String> {
    NAMES
        .iter()
        .position(|known| *known == name)
        .ok_or_else(|| format!("unknown kind of event `{name}`; the kinds are {}", NAMES.join(", ")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use pmvet_events::event::*;
    use pmvet_events::{FileId, ModuleId, ThreadId};

    /// One event of each kind.
    pub(crate) fn every_kind() -> Vec<What<'static>> {
        let mut all = vec![
            What::Load { addr: 0x1008, size: 8 },
            What::Rmw { addr: 0x1000, old: &[1, 0, 0, 0], new: &[2, 0, 0, 0], stored: true, discards: false },
            What::Unsupported { addr: 0x1000, size: 64, why: "xsave" },
            What::File { file: FileId(1), size: 4096, device: 5, inode: 6, path: "/pm/pool".as_ref() },
            What::Map { file: FileId(1), addr: 0x1000, len: 0x1000, offset: 0, writable: true },
            What::Unmap { addr: 0x1000, len: 0x1000 },
            What::FileWrite { file: FileId(1), offset: 16, data: b"data" },
            What::FileRead { file: FileId(1), offset: 16, len: 4 },
            What::FileZero { file: FileId(1), offset: 0, len: 8 },
            What::FileResize { file: FileId(1), size: 8192 },
            What::FileRename { file: FileId(1), to: "/pm/other".as_ref() },
            What::FileUnlink { file: FileId(1) },
            What::Input { len: 6 },
            What::Output { len: 3, lines: 1 },
            What::Connection { connection: 3, address: "127.0.0.1:7000" },
            What::Request { connection: 3, data: b"put 1\n" },
            What::Reply { connection: 3, len: 3, lines: 1 },
            What::ThreadStart { process: 7, os_thread: 8 },
            What::ThreadExit,
            What::ThreadCreate { child: ThreadId(2) },
            What::ThreadJoin { child: ThreadId(2) },
            What::ThreadDetach { child: ThreadId(2) },
            What::Acquire { lock: 0x99, how: LockKind::Shared },
            What::Release { lock: 0x99, how: LockKind::Exclusive },
            What::ProcessStart { process: 7, parent: 0, path: "/bin/prog".as_ref() },
            What::ProcessExit { process: 7 },
            What::Exec { path: "/bin/other".as_ref() },
            What::Module { module: ModuleId(1), base: 0x400000, size: 0x1000, path: "/bin/prog".as_ref() },
            What::Marker { how: MarkerKind::Name, addr: 0x1000, len: 8, text: "he\"ad" },
            What::Interrupted { addr: 0x1000, size: 8 },
        ];
        all.extend(StoreKind::ALL.iter().map(|&how| What::Store { addr: 0x1040, value: &[1, 2, 3, 4], how }));
        all.extend(FlushKind::ALL.iter().map(|&how| What::Flush { addr: 0x1044, how, pm: true }));
        all.extend(FenceKind::ALL.iter().map(|&how| What::Fence { how }));
        all.extend(SyncKind::ALL.iter().map(|&how| What::FileSync { file: FileId(1), offset: 0, len: 64, how }));
        all.push(What::Allocate { addr: 0x1000, len: 64 });
        all.extend(TransactionOp::ALL.iter().map(|&op| What::Transaction { op, addr: 0x1000, len: 64 }));
        all.push(What::Step { addr: 0x1000, len: 8, state: &[0; 160] });
        all.extend(AtomicKind::ALL.iter().map(|&how| What::Atomic { addr: 0x99, old: &[0], new: &[1], how }));
        all.extend(SyncOp::ALL.iter().map(|&op| What::Sync { object: 0x77, op }));
        all
    }

    #[test]
    fn numbers_and_names_agree() {
        let mut seen = [false; COUNT];
        for what in every_kind() {
            let kind = index(&what);
            assert_eq!(NAMES[kind], what.name());
            assert_eq!(parse(what.name()), Ok(kind));
            seen[kind] = true;
        }
        assert!(seen.iter().all(|&s| s), "every kind has an example");
    }

    #[test]
    fn classes() {
        for (name, class) in [("store", 0), ("kernel-store", 0), ("load", 1), ("rmw", 2), ("clwb", 3), ("mfence", 4)] {
            assert_eq!(Class::of_kind(parse(name).unwrap()) as usize, class);
        }
        assert_eq!(Class::of_kind(parse("acquire").unwrap()), Class::Other);
    }

    #[test]
    fn an_unknown_kind_lists_the_known_ones() {
        let error = parse("stor").unwrap_err();
        assert!(error.contains("`stor`") && error.contains("nt-store, kernel-store"), "{error}");
    }
}
