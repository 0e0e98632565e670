//! What is left to do when a system call returns.

use std::path::PathBuf;

use pmvet_events::event::SyncKind;
use pmvet_events::ids::FileId;

use super::kernel_writes::Buffer;
use crate::dynamorio::Inode;
use crate::record::mapping::Mapping;

/// What to do when the call under way returns.
#[derive(Debug, Default)]
pub(crate) enum PendingSyscall {
    #[default]
    Nothing,
    Map {
        file: FileId,
        inode: Inode,
        writable: bool,
    },
    /// Another mapping may replace PM.
    MapOther,
    Unmapped(Vec<Mapping>),
    Remap {
        old: Vec<Mapping>,
    },
    Written {
        file: FileId,
        inode: Inode,
        fd: i32,
        position: Position,
    },
    Resized {
        file: FileId,
        fd: i32,
    },
    Zeroed {
        file: FileId,
        fd: i32,
        offset: u64,
        len: u64,
    },
    Synced {
        ranges: Vec<FileRange>,
        how: SyncKind,
    },
    /// A file that may have been truncated by being opened.
    Opened {
        known: Option<(FileId, u64)>,
    },
    Moved {
        file: FileId,
        to: PathBuf,
    },
    Deleted {
        file: FileId,
        inode: Inode,
        last_link: bool,
    },
    Buffers(Vec<Buffer>),
    /// Random bytes or a UUID are read from a device. [`crate::control::determinism`] puts others in their place.
    Random {
        buffer: u64,
        uuid: bool,
    },
}

/// Bytes of a PM file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileRange {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Where a write went.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Position {
    At(u64),
    /// It ends at the file's position.
    Current,
}
