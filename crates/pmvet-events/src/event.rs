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
//! 7. A spinning thread is reported only for a while. Of accesses in a row by one instruction on one call path to one address, which all
//!    find the same value and change nothing, at least the first 256 are reported, with the fences between them.

use std::path::Path;

use crate::ids::{ContextId, FileId, ModuleId, SiteId, ThreadId};

/// One thing that happened, and where.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// Position in the global order.
    pub seq: u64,
    /// The thread that did it.
    pub thread: ThreadId,
    /// The instruction. Unknown for events that no single instruction stands for.
    pub site: SiteId,
    /// The call path that led to the function around `site`.
    pub context: ContextId,
    /// What it did, with the data of this kind of event.
    pub what: What<'a>,
}

/// What happened, by kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What<'a> {
    // Memory. Addresses are the target's own; `Map` says which file they belong to.
    /// A store to PM that is not a locked read-modify-write.
    Store {
        /// The first byte. A store may cross lines.
        addr: u64,
        /// The bytes as memory took them.
        value: &'a [u8],
        /// Whether it went through the cache, and who stored.
        how: StoreKind,
    },
    /// A load of PM. Reported only if the plan asks for it.
    Load {
        /// The first byte.
        addr: u64,
        /// In bytes.
        size: u32,
    },
    /// A locked read-modify-write of PM, successful or not. It also orders as a fence does.
    Rmw {
        /// The first byte of the word.
        addr: u64,
        /// What the instruction found there.
        old: &'a [u8],
        /// What was there afterwards: the same as `old` if nothing was stored.
        new: &'a [u8],
        /// False for a compare-and-exchange that found another value.
        stored: bool,
        /// An exchange whose old value the program does not use: to the program it is a store. `std::atomic` stores that way
        /// by default.
        discards: bool,
    },
    /// A change of a word of volatile memory that may be a lock, or an attempt at one. Reported only if the plan asks for
    /// it and the target has more than one thread. It does not affect PM: a separate [`FenceKind::Locked`] says that it
    /// orders as a fence does.
    Atomic {
        /// The first byte of the word.
        addr: u64,
        /// What the thread found there; for [`AtomicKind::Found`], the value it had left there.
        old: &'a [u8],
        /// What was there afterwards.
        new: &'a [u8],
        /// The result.
        how: AtomicKind,
    },
    /// An allocator has handed out this memory: its earlier use has ended.
    Allocate {
        /// The first byte that the program may use.
        addr: u64,
        /// How many bytes were asked for, at most up to the end of the mapping.
        len: u64,
    },
    /// A libpmemobj call about the transaction of its thread, reported when the call begins; allocations when they are
    /// done.
    Transaction {
        /// What was called.
        op: TransactionOp,
        /// The pool, for a transaction that begins; the bytes that are added, allocated or made persistent; the object that is freed; 0
        /// for others.
        addr: u64,
        /// In bytes; 0 where `addr` is no range.
        len: u64,
    },
    /// A cache-line flush, of PM or (a bug worth reporting) of volatile memory.
    Flush {
        /// Any address in the line.
        addr: u64,
        /// The instruction, which decides when the flush takes effect.
        how: FlushKind,
        /// Whether the line is in a mapped PM file.
        pm: bool,
    },
    /// An instruction after which the thread's earlier flushes and non-temporal stores are durable.
    Fence {
        /// The instruction.
        how: FenceKind,
    },
    /// PM was accessed in a way that pmvet does not record; the image can no longer be trusted at these bytes.
    Unsupported {
        /// The first byte; 0 if it is not known.
        addr: u64,
        /// In bytes; 0 if it is not known.
        size: u32,
        /// What pmvet does not follow, for users to read.
        why: &'a str,
    },

    // Files
    /// First contact with a PM file: its content at this moment is the initial image.
    File {
        /// The number that other events know it by.
        file: FileId,
        /// In bytes, at this moment.
        size: u64,
        /// The device the file is on (`st_dev`); with `inode` it identifies the file.
        device: u64,
        /// Its number on that device (`st_ino`).
        inode: u64,
        /// The path by which the target reached it first.
        path: &'a Path,
    },
    /// The thread's process has mapped a part of a PM file, in place of whatever was mapped there.
    Map {
        /// The file, which a [`What::File`] has announced.
        file: FileId,
        /// Where the mapping starts.
        addr: u64,
        /// In bytes, up to the end of the last page.
        len: u64,
        /// The byte of the file that stands at `addr`.
        offset: u64,
        /// False only if it was mapped without `PROT_WRITE`.
        writable: bool,
    },
    /// PM is no longer mapped here in the thread's process.
    Unmap {
        /// The first byte.
        addr: u64,
        /// In bytes. May be a part of a mapping, which is then cut or split.
        len: u64,
    },
    /// A system call changed the bytes of a file.
    FileWrite {
        /// The file that changed.
        file: FileId,
        /// The first byte. A write past the end makes the file longer.
        offset: u64,
        /// What was written. A long write is several events.
        data: &'a [u8],
    },
    /// A system call reads these bytes of a file, by its descriptor or where they are mapped, or maps them privately. Reported only if
    /// loads are.
    FileRead {
        /// The file that is read.
        file: FileId,
        /// The first byte.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// A system call filled a range with zeros (or punched a hole).
    FileZero {
        /// The file that changed.
        file: FileId,
        /// The first byte.
        offset: u64,
        /// In bytes. A [`What::FileResize`] follows, which says whether the file got longer.
        len: u64,
    },
    /// A system call may have changed the size of a file. Bytes that are new are 0.
    FileResize {
        /// The file.
        file: FileId,
        /// Its size now, in bytes.
        size: u64,
    },
    /// A system call made these bytes of a file durable.
    FileSync {
        /// The file.
        file: FileId,
        /// The first byte.
        offset: u64,
        /// In bytes; may reach past the end of the file.
        len: u64,
        /// Which call.
        how: SyncKind,
    },
    /// A file has another path now.
    FileRename {
        /// The file.
        file: FileId,
        /// The new path.
        to: &'a Path,
    },
    /// A path of a file was removed. A file that is mapped or open lives on.
    FileUnlink {
        /// The file.
        file: FileId,
    },

    // What the target is asked, and what it answers. Reported only if the plan asks for it.
    /// The target has read this many more bytes of its operations.
    Input {
        /// In bytes; 0 at the end of the operations.
        len: u64,
    },
    /// The target has written to standard output.
    Output {
        /// In bytes.
        len: u64,
        /// How many of the bytes are newlines.
        lines: u64,
    },
    /// A server has accepted a connection, on this address of its own. Connections have the number of their socket.
    Connection {
        /// The number of the new connection.
        connection: u32,
        /// The server's own address; empty if it is not known.
        address: &'a str,
    },
    /// What a server has read from a client.
    Request {
        /// The number of the connection.
        connection: u32,
        /// The bytes. A long request is several events.
        data: &'a [u8],
    },
    /// A server has written to a client.
    Reply {
        /// The number of the connection.
        connection: u32,
        /// In bytes.
        len: u64,
        /// How many of the bytes are newlines; 0 if they came from a file, where they are not counted.
        lines: u64,
    },

    // Threads and synchronisation
    /// The thread's first event, except in the first thread of a process: see [`What::ProcessStart`].
    ThreadStart {
        /// The kernel's number of its process.
        process: u32,
        /// The kernel's number of the thread.
        os_thread: u32,
    },
    /// The thread ends. Only a [`What::ProcessExit`] may follow; a thread that is killed has neither.
    ThreadExit,
    /// The thread is about to create another.
    ThreadCreate {
        /// The new thread.
        child: ThreadId,
    },
    /// The thread has waited for the end of another.
    ThreadJoin {
        /// The thread that has ended.
        child: ThreadId,
    },
    /// The thread will not be joined.
    ThreadDetach {
        /// The thread that goes on by itself.
        child: ThreadId,
    },
    /// A lock was taken. Attempts that fail are not reported.
    Acquire {
        /// The address of the lock.
        lock: u64,
        /// Whether others may hold it too.
        how: LockKind,
    },
    /// A lock is about to be released.
    Release {
        /// The address of the lock.
        lock: u64,
        /// How it was held, if that is known; otherwise what the function is for.
        how: LockKind,
    },
    /// Condition variables, barriers and semaphores: order that is not mutual exclusion.
    Sync {
        /// The address of the condition variable, barrier or semaphore.
        object: u64,
        /// What is done with it.
        op: SyncOp,
    },

    // Processes
    /// A process starts, or goes on with another program: the first event of its first thread.
    ProcessStart {
        /// The kernel's number of the process, which may be used again after its end.
        process: u32,
        /// The process it was forked from, whose mappings it starts with; 0 if it started with a new program.
        parent: u32,
        /// The program.
        path: &'a Path,
    },
    /// The last thread of a process has ended. A process that is killed has no such event.
    ProcessExit {
        /// The kernel's number of the process.
        process: u32,
    },
    /// The thread is about to replace its process's program. If that fails, the process goes on.
    Exec {
        /// The new program.
        path: &'a Path,
    },
    /// An executable or a library was loaded into the thread's process.
    Module {
        /// The number that sites know it by.
        module: ModuleId,
        /// Where it starts in memory.
        base: u64,
        /// How many bytes from `base` to its end.
        size: u64,
        /// The file it was loaded from.
        path: &'a Path,
    },

    /// The program itself reports something, by `pmvet.h` or by pmemcheck's log request.
    Marker {
        /// What it says.
        how: MarkerKind,
        /// The first of the bytes that [`MarkerKind::Name`] and [`MarkerKind::Ignore`] are about; 0 for others.
        addr: u64,
        /// In bytes; 0 for others.
        len: u64,
        /// A name or a free text; empty if the marker has none.
        text: &'a str,
    },
    /// A thread whose data flow is followed is about to run the instruction. Reported only if the plan asks for it.
    Step {
        /// Bytes that it is about to read and that another, stopped thread has stored; none if `len` is 0.
        addr: u64,
        /// In bytes.
        len: u64,
        /// A [`ThreadState`](crate::thread_state::ThreadState).
        state: &'a [u8],
    },
    /// The thread was killed while it stored: the bytes may or may not have reached memory.
    Interrupted {
        /// The first byte of the store.
        addr: u64,
        /// How many bytes may have changed; at least a cache line.
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
            /// All variants, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The variant with this number, if there is one.
            pub fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The stable name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    )*};
}

tags! {
    /// How bytes came into PM.
    StoreKind {
        /// Goes through the cache.
        Regular = 0 "store",
        /// Bypasses the cache: pending until the thread's next fence.
        NonTemporal = 1 "nt-store",
        /// The kernel wrote into the mapping on behalf of the target, as `read` does.
        Kernel = 2 "kernel-store",
    }
    /// Which flush instruction.
    FlushKind {
        /// Takes effect at once: what the line holds is durable.
        Clflush = 0 "clflush",
        /// Takes effect with the thread's next fence.
        Clflushopt = 1 "clflushopt",
        /// As `clflushopt`, but the line may stay in the cache.
        Clwb = 2 "clwb",
    }
    /// Which kind of instruction orders.
    FenceKind {
        /// Orders stores and flushes.
        Sfence = 0 "sfence",
        /// As `sfence`, and orders loads too.
        Mfence = 1 "mfence",
        /// A locked instruction on volatile memory. Reported only if the thread has flushes or non-temporal
        /// stores pending, since it orders nothing else that persistency depends on.
        Locked = 2 "locked",
        /// `cpuid`, `serialize`, `iret`; reported under the same condition.
        Serializing = 3 "serializing",
    }
    /// Which system call makes bytes of a file durable.
    SyncKind {
        /// `msync`, of what is mapped there.
        Msync = 0 "msync",
        /// `fsync`; also `sync` and `syncfs`, once for each file.
        Fsync = 1 "fsync",
        /// `fdatasync`.
        Fdatasync = 2 "fdatasync",
        /// `sync_file_range`, if it waits until everything is written.
        SyncFileRange = 3 "sync_file_range",
    }
    /// What happened to a word of volatile memory.
    AtomicKind {
        /// A locked read-modify-write.
        Changed = 0 "atomic",
        /// A compare-and-exchange that found another value.
        Failed = 1 "atomic-failed",
        /// The thread had changed the word atomically and now finds another value: by its own plain store, or by
        /// another thread, whose change has a separate event.
        Found = 2 "atomic-found",
        /// An exchange whose old value the program does not use.
        Stored = 3 "atomic-stored",
    }
    /// What a call of libpmemobj does.
    TransactionOp {
        /// Begins a transaction, nested if one is open.
        Begin = 0 "tx-begin",
        /// From here on, the transaction rolls back stores to these bytes if it does not commit.
        Add = 1 "tx-add",
        /// The transaction allocates an object, which disappears if it does not commit.
        Allocate = 2 "tx-allocate",
        /// The transaction frees an object, which stays if it does not commit.
        Free = 3 "tx-free",
        /// Of a nested transaction, this has no effect: it commits with the outermost one.
        Commit = 4 "tx-commit",
        /// Also aborts the outermost transaction. May come twice.
        Abort = 5 "tx-abort",
        /// The call that follows a commit or an abort. It ends only the innermost transaction.
        End = 6 "tx-end",
        /// The program makes these bytes persistent itself, in a transaction or not.
        Persist = 7 "tx-persist",
    }
    /// Who may hold a lock at the same time.
    LockKind {
        /// One thread.
        Exclusive = 0 "exclusive",
        /// Readers together.
        Shared = 1 "shared",
    }
    /// What a thread does with an object that orders threads.
    SyncOp {
        /// Begins to wait. Separate events release and re-acquire the mutex.
        CondWait = 0 "cond-wait",
        /// The wait has ended, by a signal or a timeout; the mutex is held again.
        CondWoken = 1 "cond-woken",
        /// Wakes one thread that waits.
        CondSignal = 2 "cond-signal",
        /// Wakes all threads that wait.
        CondBroadcast = 3 "cond-broadcast",
        /// Comes to a barrier.
        BarrierEnter = 4 "barrier-enter",
        /// Goes on: all others have come.
        BarrierLeave = 5 "barrier-leave",
        /// Adds 1 to a semaphore.
        SemPost = 6 "sem-post",
        /// Has taken 1 from a semaphore.
        SemAcquire = 7 "sem-acquire",
    }
    /// What a marker says.
    MarkerKind {
        /// An operation begins; the text is its name.
        Begin = 0 "begin",
        /// The operation of that name ends.
        End = 1 "end",
        /// A crash here must need no repair.
        Consistent = 2 "consistent",
        /// The name of these bytes in reports.
        Name = 3 "name",
        /// These bytes need not survive a crash.
        Ignore = 4 "ignore",
        /// Free text, as pmemcheck's log request sends it.
        Log = 5 "log",
        /// An operation of the input begins; the text is its line, or nothing for the next one.
        OpBegin = 6 "op-begin",
        /// The operation is done, and its client may be told.
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

    /// Whether it may tell a client that its operation is done.
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
