//! Transactions of libpmemobj: the functions that handle them, and what a call means.
//!
//! The macros (`TX_BEGIN`, `TX_ADD`, `TX_SET`) and the C++ bindings all end in these functions, which the library exports: they are known
//! by name whether or not it has debug information.

use pmvet_events::event::{TransactionOp, What};

use super::allocators::Request;
use crate::dynamorio;

/// What `pmemobj_tx_stage` returns after an abort.
const STAGE_ONABORT: u64 = 3;

/// One function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionCall {
    /// Of the pool that is its first argument.
    Begin,
    /// Commits; `pmemobj_tx_process` does so if the transaction is at work.
    Commit,
    Abort,
    End,
    /// Returns the stage of the transaction. A failed call, such as an allocation, may have aborted it.
    Stage,
    /// Of a `PMEMoid`, an offset into it, and a length.
    AddObject,
    /// Of an address and a length.
    AddMemory,
    Allocate {
        size: Size,
        /// Also report the allocation for race detection: the earlier use of the memory has ended.
        ends_old_memory: bool,
    },
    /// Of a `PMEMoid`.
    Free,
    /// Makes memory persistent: its address and its length are these arguments.
    Persist {
        addr: u8,
        len: u8,
    },
}

/// Where an allocation has its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Argument(u8),
    /// That of the text that is its first argument.
    Text,
    /// The same, in characters of four bytes.
    WideText,
}

/// What the return of a call shows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub(super) allocated: Option<(u64, u64)>,
    pub(super) aborted: bool,
}

/// The functions by name. With `races`, allocations are also reported as such.
pub(super) fn functions(races: bool) -> impl Iterator<Item = (String, TransactionCall)> {
    use TransactionCall::{Abort, AddMemory, AddObject, Allocate, Begin, Commit, End, Free, Persist, Stage};
    let persist = Persist { addr: 1, len: 2 };
    let copy_and_persist = Persist { addr: 1, len: 3 };
    let new = |size| Allocate { size, ends_old_memory: races };
    let copy = |size| Allocate { size, ends_old_memory: false };
    let all = [
        ("pmemobj_tx_begin", Begin),
        ("pmemobj_tx_commit", Commit),
        ("pmemobj_tx_process", Commit),
        ("pmemobj_tx_abort", Abort),
        ("pmemobj_tx_end", End),
        ("pmemobj_tx_stage", Stage),
        ("pmemobj_tx_add_range", AddObject),
        ("pmemobj_tx_xadd_range", AddObject),
        ("pmemobj_tx_add_range_direct", AddMemory),
        ("pmemobj_tx_xadd_range_direct", AddMemory),
        ("pmemobj_tx_alloc", new(Size::Argument(0))),
        ("pmemobj_tx_zalloc", new(Size::Argument(0))),
        ("pmemobj_tx_xalloc", new(Size::Argument(0))),
        ("pmemobj_tx_realloc", copy(Size::Argument(2))),
        ("pmemobj_tx_zrealloc", copy(Size::Argument(2))),
        ("pmemobj_tx_strdup", copy(Size::Text)),
        ("pmemobj_tx_xstrdup", copy(Size::Text)),
        ("pmemobj_tx_wcsdup", copy(Size::WideText)),
        ("pmemobj_tx_xwcsdup", copy(Size::WideText)),
        ("pmemobj_tx_free", Free),
        ("pmemobj_tx_xfree", Free),
        ("pmemobj_persist", persist),
        ("pmemobj_xpersist", persist),
        ("pmemobj_flush", persist),
        ("pmemobj_xflush", persist),
        ("pmemobj_memcpy_persist", copy_and_persist),
        ("pmemobj_memset_persist", copy_and_persist),
    ];
    all.into_iter().map(|(name, call)| (name.to_owned(), call))
}

impl TransactionCall {
    pub(super) fn begins(self) -> bool {
        self == Self::Begin
    }

    pub(super) fn is_allocator(self) -> bool {
        matches!(self, Self::Allocate { ends_old_memory: true, .. })
    }

    /// The bytes that a call concerns. For an allocation: the pool, and the requested size.
    pub(super) fn request(self, arguments: &[u64; 4], pool: u64) -> Request {
        let [first, second, third, fourth] = *arguments;
        match self {
            Self::Begin => Request::new(pool, 0),
            // A `PMEMoid` takes two registers: the pool's number, and the offset from its start.
            Self::AddObject => Request::new(pool.wrapping_add(second).wrapping_add(third), fourth),
            Self::AddMemory => Request::new(first, second),
            Self::Free => Request::new(pool.wrapping_add(second), 0),
            Self::Persist { addr, len } => {
                Request::new(arguments[usize::from(addr) % 4], arguments[usize::from(len) % 4])
            }
            Self::Allocate { size: Size::Argument(number), .. } => {
                Request::new(pool, arguments[usize::from(number) % arguments.len()])
            }
            Self::Allocate { size: Size::Text, .. } => {
                Request::new(pool, dynamorio::read_c_string(first).map_or(1, |text| text.len() as u64 + 1))
            }
            Self::Allocate { size: Size::WideText, .. } => Request::new(pool, wide_length(first)),
            Self::Commit | Self::Abort | Self::End | Self::Stage => Request::default(),
        }
    }

    pub(super) fn at_entry(self, request: Request) -> Option<What<'static>> {
        let op = match self {
            Self::Begin => TransactionOp::Begin,
            Self::Commit => TransactionOp::Commit,
            Self::Abort => TransactionOp::Abort,
            Self::End => TransactionOp::End,
            Self::AddObject | Self::AddMemory => TransactionOp::Add,
            Self::Free => TransactionOp::Free,
            Self::Persist { .. } => TransactionOp::Persist,
            Self::Stage | Self::Allocate { .. } => return None,
        };
        Some(What::Transaction { op, addr: request.base, len: request.len })
    }

    pub(super) fn tells_at_return(self) -> bool {
        matches!(self, Self::Stage | Self::Allocate { .. })
    }

    /// `results` are the two registers that results come in.
    pub(super) fn at_return(self, request: Request, results: (u64, u64)) -> Told {
        match self {
            Self::Stage => Told { aborted: results.0 as u32 as u64 == STAGE_ONABORT, ..Told::default() },
            Self::Allocate { .. } if results.1 != 0 => {
                Told { allocated: Some((request.base.wrapping_add(results.1), request.len)), ..Told::default() }
            }
            _ => Told::default(),
        }
    }
}

/// The bytes of a text of wide characters, with its terminator, up to a bound.
fn wide_length(addr: u64) -> u64 {
    const MOST_CHARACTERS: u64 = 1024;
    let is_end = |i: &u64| dynamorio::read_word(addr.wrapping_add(4 * i)).is_none_or(|word| word as u32 == 0);
    4 * ((0..MOST_CHARACTERS).find(is_end).unwrap_or(MOST_CHARACTERS) + 1)
}
