//! What the client is told before the target starts, as plain data.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How the client is to run a target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Report loads of PM too.
    pub loads: bool,
    /// Report what else may keep threads apart beside known locks: atomic changes of volatile memory, which may be
    /// locks, once there is more than one thread; and allocations.
    #[serde(default)]
    pub races: bool,
    /// Give the same time, random numbers and UUIDs to every run.
    pub deterministic: bool,
    /// The target must stop at its first contact with a PM file until pmvet has seen the file as it is.
    pub snapshots: bool,
    /// Globs of files that are PM, beside DAX files and those that the target maps with `MAP_SYNC`. They match a path's
    /// [`text`](crate::paths::text).
    pub pm: Vec<String>,
    /// Synchronisation functions beside the built-in ones.
    pub sync: Vec<SyncFunction>,
    /// Allocators of PM beside the built-in ones.
    #[serde(default)]
    pub alloc: Vec<AllocFunction>,
    /// Make it a fork server.
    #[serde(default)]
    pub forks: Option<Forks>,
    /// Sync points at which threads stop until pmvet lets them go on.
    #[serde(default)]
    pub stalls: Vec<Stall>,
    /// How many threads the target is known to start: a stopped one waits for the others to start, if need be.
    #[serde(default)]
    pub threads: u32,
    /// How many stores others may make while a thread is stopped.
    #[serde(default)]
    pub patience: u32,
    /// Follow the data flow of threads that read what another has stored and not fenced, for this many instructions after such a
    /// load: each is a [`crate::event::What::Step`].
    #[serde(default)]
    pub follow: u32,
    /// Keep threads in step: none makes many more fences than the others. Otherwise threads of short runs take turns of a
    /// few milliseconds, so that few of their operations overlap, and different ones in each run.
    #[serde(default)]
    pub in_step: bool,
    /// Delay each access to PM by up to a random millisecond: the baseline for forced schedules.
    #[serde(default)]
    pub delays: bool,
    /// Also count branches, in the map of the stage at this path.
    #[serde(default)]
    pub branches: Option<String>,
    /// Report reads of operations, and answers.
    #[serde(default)]
    pub operations: Option<OperationsFrom>,
}

/// Where a target reads its operations, a line each. It gets one line at a time, as from a terminal, so what it does between two
/// reads is one operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationsFrom {
    /// Standard input, a regular file.
    Input,
    /// This file.
    File(#[serde(with = "crate::paths::as_text")] PathBuf),
    /// The connections that it accepts. Reads from them are not cut into lines.
    Connections,
}

/// A function that hands out memory. Arguments are counted from 0; the first four can be named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllocFunction {
    /// Symbol name, as the linker knows it.
    pub function: String,
    /// Which argument is the size in bytes.
    pub size: Option<u8>,
    /// How many bytes it allocates, if no argument says so; with `size`, the bytes per unit.
    pub bytes: Option<u64>,
    /// Which argument is the address of its result; without it, the result is the return value.
    pub out: Option<u8>,
    /// The result is an offset from this argument, not an address.
    pub base: Option<u8>,
}

/// The label of the file in memory that a target reads its input from, by which the client knows it.
pub const INPUT_LABEL: &str = "/pmvet-input";

/// A target that stops at a fork point and goes on in children, one for each order from pmvet (see [`crate::stage`]).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forks {
    /// The path of the stage.
    pub stage: String,
    /// The first call that names one of these files, given without symbolic links, is a fork point.
    #[serde(with = "crate::paths::as_text")]
    pub files: Vec<PathBuf>,
    /// So is the first call that reads the input: this file, or standard input.
    #[serde(with = "crate::paths::as_text")]
    pub input: Option<PathBuf>,
    /// Count operations on PM and branches in the stage's maps. No events are reported.
    pub count: bool,
}

/// A sync point: stops threads that have stored to PM by this instruction, or are about to run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The path of the module as the loader has it.
    #[serde(with = "crate::paths::as_text")]
    pub module: PathBuf,
    /// How many bytes the instruction is from the start of the module's image.
    pub offset: u64,
    /// Stop before the instruction, of whatever kind: a fence, say, that would make stores persistent.
    pub before: bool,
    /// The stops, in the order in which each thread reaches them.
    pub stops: Vec<Stop>,
}

/// One visit of a thread to a sync point, and what it waits for there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The number of the thread, as in [`ThreadId`](crate::ThreadId).
    pub thread: u32,
    /// How often the thread was there before.
    pub nth: u32,
    /// The thread that should read what the stopped one has stored; 0 for any.
    pub reader: u32,
    /// In how many of its operations it should read it. An operation ends with a fence.
    pub reads: u32,
    /// Instead of reads: the number of the stop of `reader` to wait for; 0 for none.
    #[serde(default)]
    pub until: u32,
    /// The number of this stop, if others wait for it.
    #[serde(default)]
    pub number: u32,
}

/// How many sync points a plan may have: each has one bit of a word in shared memory that says whether it is over.
pub const MAX_STALLS: usize = 64;

/// A function that takes or releases a lock, as in HawkSet's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncFunction {
    /// Symbol name, as the linker knows it.
    pub function: String,
    /// What a call does to the lock.
    pub kind: SyncFunctionKind,
    /// Which argument, from 0, is the lock's address.
    #[serde(default)]
    pub arg: u8,
    /// Readers may hold the lock together.
    #[serde(default)]
    pub shared: bool,
    /// The return value that means the lock was taken. Without it an acquire always succeeds.
    pub success: Option<i64>,
}

/// What a synchronisation function does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncFunctionKind {
    /// Takes the lock, and waits for it.
    Acquire,
    /// Like `acquire`, but `success` defaults to 0, as in `pthread_mutex_trylock`.
    Try,
    /// Releases the lock.
    Release,
}
