//! The event vocabulary: everything a target does that an engine may want to know.
//!
//! The contract between the client, which produces events, and every engine, which consumes them:
//!
//! 1. Events arrive in the order of their sequence numbers. Numbers start at 1 and have no gaps; a lost event is
//!    therefore always noticed.
//! 2. For each PM byte the order of stores is the order in which memory took them, across threads, processes and
//!    mappings: replaying [`What::Store`], [`What::Rmw`] and the file events onto the initial image gives the final
//!    bytes of the file.
//! 3. A [`What::Load`] shares the number of the numbered event before it. A load that read a store's value comes
//!    after that store. (A load that raced and lost may come after a store whose value it did not see yet.)
//! 4. [`What::ThreadCreate`] comes before the first event of the child, [`What::ThreadJoin`] after its last.
//! 5. A lock's release comes before the next acquisition of the same lock.
//! 6. A definition ([`What::Module`], [`What::File`]) comes before the first event that refers to it.
//! 7. A thread that spins is reported for a while only. Of accesses in a row that find the same and change nothing, by one instruction on
//!    one call path to one address, at least the first 256 are reported, with the fences between them.

use std::path::Path;

use crate::ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};

/// One thing that happened, and where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// Position in the global order.
    pub seq: u64,
    pub thread: ThreadId,
    /// The instruction. Unknown for events that no single instruction stands for.
    pub site: SiteId,
    /// The call path that led to the function around `site`.
    pub context: ContextId,
    pub what: What<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What<'a> {
    // Memory. Addresses are the target's own; `Map` says which file they belong to.
    Store {
        addr: u64,
        value: &'a [u8],
        how: StoreKind,
    },
    Load {
        addr: u64,
        size: u32,
    },
    /// A locked read-modify-write of PM, successful or not. It also orders as a fence does.
    Rmw {
        addr: u64,
        old: &'a [u8],
        new: &'a [u8],
        /// False for a compare-and-exchange that found another value.
        stored: bool,
        /// An exchange whose old value the program does not use: to the program it is a store. `std::atomic` stores that way
        /// by default.
        discards: bool,
    },
    /// A change of a word of volatile memory that may be a lock, or an attempt at one. Reported only if the plan asks for
    /// it and the target has more than one thread. It means nothing to PM: that it orders as a fence does is said by a
    /// [`FenceKind::Locked`] of its own.
    Atomic {
        addr: u64,
        old: &'a [u8],
        new: &'a [u8],
        how: AtomicKind,
    },
    /// An allocator has handed out this memory: whatever was there before has ended.
    Allocate {
        addr: u64,
        len: u64,
    },
    /// A call of libpmemobj about the transaction of its thread, when it begins. Allocations are told when they are done.
    Transaction {
        op: TransactionOp,
        /// The pool of one that begins, the bytes that are added, allocated or made persistent, the object that is freed; 0 for others.
        addr: u64,
        len: u64,
    },
    /// A cache-line flush, of PM or (a bug worth reporting) of volatile memory.
    Flush {
        addr: u64,
        how: FlushKind,
        pm: bool,
    },
    Fence {
        how: FenceKind,
    },
    /// PM was accessed in a way that pmvet does not record; the image can no longer be trusted at these bytes.
    Unsupported {
        addr: u64,
        size: u32,
        why: &'a str,
    },

    // Files
    /// First contact with a PM file: its content at this moment is the initial image.
    File {
        file: FileId,
        size: u64,
        device: u64,
        inode: u64,
        path: &'a Path,
    },
    Map {
        file: FileId,
        addr: u64,
        len: u64,
        offset: u64,
        writable: bool,
    },
    Unmap {
        addr: u64,
        len: u64,
    },
    /// A system call changed the bytes of a file.
    FileWrite {
        file: FileId,
        offset: u64,
        data: &'a [u8],
    },
    /// A system call reads these bytes of a file, by its descriptor or where they are mapped, or maps them privately. Reported only if
    /// loads are.
    FileRead {
        file: FileId,
        offset: u64,
        len: u64,
    },
    /// A system call filled a range with zeros (or punched a hole).
    FileZero {
        file: FileId,
        offset: u64,
        len: u64,
    },
    FileResize {
        file: FileId,
        size: u64,
    },
    FileSync {
        file: FileId,
        offset: u64,
        len: u64,
        how: SyncKind,
    },
    FileRename {
        file: FileId,
        to: &'a Path,
    },
    FileUnlink {
        file: FileId,
    },

    // What the target is asked, and what it answers. Reported only if the plan asks for it.
    /// So many more bytes of the operations were read; none at their end.
    Input {
        len: u64,
    },
    /// Standard output, or a reply to a client: so many bytes, with so many ends of lines among them.
    Output {
        len: u64,
        lines: u64,
    },
    /// A server has accepted a connection, on this address of its own. Connections have the number of their socket.
    Connection {
        connection: u32,
        address: &'a str,
    },
    /// What a server has read from a client.
    Request {
        connection: u32,
        data: &'a [u8],
    },
    /// What a server has written to a client: so many bytes, with so many ends of lines among them.
    Reply {
        connection: u32,
        len: u64,
        lines: u64,
    },

    // Threads and synchronisation
    ThreadStart {
        process: u32,
        os_thread: u32,
    },
    ThreadExit,
    ThreadCreate {
        child: ThreadId,
    },
    ThreadJoin {
        child: ThreadId,
    },
    /// Nobody will join it.
    ThreadDetach {
        child: ThreadId,
    },
    Acquire {
        lock: u64,
        how: LockKind,
    },
    Release {
        lock: u64,
        how: LockKind,
    },
    /// Condition variables, barriers and semaphores: order that is not mutual exclusion.
    Sync {
        object: u64,
        op: SyncOp,
    },

    // Processes
    ProcessStart {
        process: u32,
        /// The process it was forked from, whose mappings it starts with; 0 if it started with a new program.
        parent: u32,
        path: &'a Path,
    },
    ProcessExit {
        process: u32,
    },
    Exec {
        path: &'a Path,
    },
    Module {
        module: ModuleId,
        base: u64,
        size: u64,
        path: &'a Path,
    },

    Marker {
        how: MarkerKind,
        addr: u64,
        len: u64,
        text: &'a str,
    },
    /// A thread whose data flow is followed is about to run the instruction. Reported only if the plan asks for it.
    Step {
        /// Bytes that it is about to read and that another thread, which is stopped, has stored; none if `len` is 0.
        addr: u64,
        len: u64,
        /// A [`ThreadState`](crate::thread_state::ThreadState).
        state: &'a [u8],
    },
    /// The thread was killed while it stored: the bytes may or may not have reached memory.
    Interrupted {
        addr: u64,
        size: u32,
    },
}

/// Declares a plain enum with a stable number and a stable name for each variant, for the wire, the file and JSON.
macro_rules! tags {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal $text:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $number),* }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    )*};
}

tags! {
    StoreKind {
        Regular = 0 "store",
        /// Bypasses the cache: pending until the thread's next fence.
        NonTemporal = 1 "nt-store",
        /// The kernel wrote into the mapping on behalf of the target, as `read` does.
        Kernel = 2 "kernel-store",
    }
    FlushKind {
        Clflush = 0 "clflush",
        Clflushopt = 1 "clflushopt",
        Clwb = 2 "clwb",
    }
    FenceKind {
        Sfence = 0 "sfence",
        Mfence = 1 "mfence",
        /// A locked instruction on volatile memory. Reported only if the thread has flushes or non-temporal
        /// stores pending, since it orders nothing else that persistency depends on.
        Locked = 2 "locked",
        /// `cpuid`, `serialize`, `iret`; reported under the same condition.
        Serializing = 3 "serializing",
    }
    SyncKind {
        Msync = 0 "msync",
        Fsync = 1 "fsync",
        Fdatasync = 2 "fdatasync",
        SyncFileRange = 3 "sync_file_range",
    }
    AtomicKind {
        /// A locked read-modify-write.
        Changed = 0 "atomic",
        /// A compare-and-exchange that found another value.
        Failed = 1 "atomic-failed",
        /// The thread had changed the word atomically, and finds another value now: by its own plain store, or by what
        /// another thread did, which has an event of its own.
        Found = 2 "atomic-found",
        /// An exchange whose old value the program does not use.
        Stored = 3 "atomic-stored",
    }
    TransactionOp {
        /// Of another one, too: then it is nested.
        Begin = 0 "tx-begin",
        /// From here on the transaction takes back what is stored to these bytes if it does not commit.
        Add = 1 "tx-add",
        Allocate = 2 "tx-allocate",
        Free = 3 "tx-free",
        /// Of a nested one, this changes nothing: it commits with the outermost one.
        Commit = 4 "tx-commit",
        /// Of the outermost one, too. May come twice.
        Abort = 5 "tx-abort",
        End = 6 "tx-end",
        /// The program makes these bytes persistent itself, in a transaction or not.
        Persist = 7 "tx-persist",
    }
    LockKind {
        Exclusive = 0 "exclusive",
        Shared = 1 "shared",
    }
    SyncOp {
        /// The mutex is released and re-acquired by events of its own.
        CondWait = 0 "cond-wait",
        CondWoken = 1 "cond-woken",
        CondSignal = 2 "cond-signal",
        CondBroadcast = 3 "cond-broadcast",
        BarrierEnter = 4 "barrier-enter",
        BarrierLeave = 5 "barrier-leave",
        SemPost = 6 "sem-post",
        SemAcquire = 7 "sem-acquire",
    }
    MarkerKind {
        Begin = 0 "begin",
        End = 1 "end",
        Consistent = 2 "consistent",
        Name = 3 "name",
        Ignore = 4 "ignore",
        /// Free text, as pmemcheck's log request sends it.
        Log = 5 "log",
        /// An operation of the input begins; the text is its line, or nothing for the next one.
        OpBegin = 6 "op-begin",
        /// It is done, and whoever asked for it may know.
        OpEnd = 7 "op-end",
    }
}

impl What<'_> {
    /// The name under which the command line and JSON know this kind of event.
    pub fn name(&self) -> &'static str {
        match self {
            What::Store { how, .. } => how.name(),
            What::Load { .. } => "load",
            What::Rmw { .. } => "rmw",
            What::Atomic { how, .. } => how.name(),
            What::Allocate { .. } => "allocate",
            What::Transaction { op, .. } => op.name(),
            What::Flush { how, .. } => how.name(),
            What::Fence { how } => match how {
                FenceKind::Sfence => "sfence",
                FenceKind::Mfence => "mfence",
                FenceKind::Locked => "locked-fence",
                FenceKind::Serializing => "serializing-fence",
            },
            What::Unsupported { .. } => "unsupported",
            What::File { .. } => "file",
            What::Map { .. } => "map",
            What::Unmap { .. } => "unmap",
            What::FileRead { .. } => "file-read",
            What::FileWrite { .. } => "file-write",
            What::FileZero { .. } => "file-zero",
            What::FileResize { .. } => "file-resize",
            What::FileSync { how, .. } => how.name(),
            What::FileRename { .. } => "file-rename",
            What::FileUnlink { .. } => "file-unlink",
            What::Input { .. } => "input",
            What::Output { .. } => "output",
            What::Connection { .. } => "connection",
            What::Request { .. } => "request",
            What::Reply { .. } => "reply",
            What::ThreadStart { .. } => "thread-start",
            What::ThreadExit => "thread-exit",
            What::ThreadCreate { .. } => "thread-create",
            What::ThreadJoin { .. } => "thread-join",
            What::ThreadDetach { .. } => "thread-detach",
            What::Acquire { .. } => "acquire",
            What::Release { .. } => "release",
            What::Sync { op, .. } => op.name(),
            What::ProcessStart { .. } => "process-start",
            What::ProcessExit { .. } => "process-exit",
            What::Exec { .. } => "exec",
            What::Module { .. } => "module",
            What::Marker { .. } => "marker",
            What::Step { .. } => "step",
            What::Interrupted { .. } => "interrupted",
        }
    }

    /// Whether the event has a sequence number of its own. Loads share the number of the event before them.
    pub fn is_numbered(&self) -> bool {
        !matches!(self, What::Load { .. })
    }

    /// Whether it may tell whoever asked for an operation that it is done.
    pub fn is_answer(&self) -> bool {
        matches!(self, What::Output { .. } | What::Reply { .. } | What::Marker { how: MarkerKind::OpEnd, .. })
    }

    /// The memory the event touches, as address and length.
    pub fn range(&self) -> Option<(u64, u64)> {
        match *self {
            What::Store { addr, value, .. } => Some((addr, value.len() as u64)),
            What::Load { addr, size } | What::Unsupported { addr, size, .. } | What::Interrupted { addr, size } => {
                Some((addr, u64::from(size)))
            }
            What::Rmw { addr, new, .. } | What::Atomic { addr, new, .. } => Some((addr, new.len() as u64)),
            What::Flush { addr, .. } => Some((addr & !(LINE - 1), LINE)),
            What::Map { addr, len, .. }
            | What::Unmap { addr, len }
            | What::Marker { addr, len, .. }
            | What::Allocate { addr, len } => Some((addr, len)),
            What::Transaction {
                op: TransactionOp::Add | TransactionOp::Allocate | TransactionOp::Persist,
                addr,
                len,
            } => Some((addr, len)),
            _ => None,
        }
    }
}

/// Bytes in a cache line.
pub const LINE: u64 = 64;
